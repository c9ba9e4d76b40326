"""Types of products over weights that are not packed yet: everything in it is for other compiled modules."""
