"""The one extension that links the lanes of `csrc`: instruction sets, the formats that can be
packed, facts about the CPU.
"""

from typing import TypedDict

class CpuInfo(TypedDict):
    isa: str
    isa_available: tuple[str, ...]
    features: tuple[str, ...]
    model: str
    physical_cores: int
    allowed_cpus: int
    cgroup_cpus: float | None
    default_threads: int

ACTS: tuple[str, ...]
PANEL_LAYOUT: int

def isa_available() -> tuple[str, ...]: ...
def isa_active() -> str: ...
def lanes_available() -> tuple[str, ...]: ...
def packable_formats() -> tuple[tuple[str, int, int, str], ...]: ...
def cpu_info() -> CpuInfo: ...
