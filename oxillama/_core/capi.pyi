"""Types of the C table's module."""

from types import ModuleType
from typing import Any

STATUS: dict[str, int]
table: Any

def install(module: ModuleType) -> None: ...
def address() -> int: ...
