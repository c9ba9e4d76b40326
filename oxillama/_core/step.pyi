"""Types of what checks an op while a program is built."""

ACT_NAMES: tuple[str, ...]
MAX_COLUMNS: int

class Op:
    name: str
    wanted: bool
    output: bool

class Plan:
    widths: list[int]
    kv_layers: list[tuple[int, int, int]]
