"""Types of the ops over stacks of matrices."""

OPS: dict[str, type]
