"""Types of the ops that keep recurrent state."""

OPS: dict[str, type]

def scan_blocks(channels: int, heads: int) -> int: ...
