"""Types of the attention ops: the tape alone uses them."""

OPS: dict[str, type]
