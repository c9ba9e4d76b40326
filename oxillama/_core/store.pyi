"""Types of the op that stores keys and values: the tape alone uses it."""

OPS: dict[str, type]

def head_shape(plan: object, p: dict, *, least: int = 1) -> tuple[int, int, int, int, int]: ...
