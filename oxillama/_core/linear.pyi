"""Types of the matmul op: the tape alone uses it."""

OPS: dict[str, type]
