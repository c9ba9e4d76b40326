"""Types of low-rank sums: everything in it is for other compiled modules."""
