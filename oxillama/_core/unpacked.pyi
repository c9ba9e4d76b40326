"""Types of products over weights that are not packed yet; only other compiled modules use them."""
