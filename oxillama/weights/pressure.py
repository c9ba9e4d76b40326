"""`MemoryPressureProbe`: how close the system, or the control group of this process, is to its
memory limit.
"""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from pathlib import Path

from oxillama._core.threads import cgroup_folders, system_memory, system_text
from oxillama.errors import ConfigError

HIGH, LOW = 0.90, 0.75


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Bytes in use and their limit. Cached files do not count, because the system can drop them."""

    used: int
    limit: int

    @property
    def share(self) -> float:
        """The share of the limit in use, 0 to 1."""
        return self.used / self.limit if self.limit > 0 else 1.0


class MemoryPressureProbe:
    """Reads the memory in use where the limit is tightest: of the system (`/proc/meminfo`), or of a
    control group of this process (version 2 `memory.max`, version 1 `memory.limit_in_bytes`).

    high: share of the limit above which memory is short; low: share below which it no longer is.
    proc, root: the folders in which the system shows both.
    """

    __slots__ = ("_proc", "_root", "_short", "high", "low")

    def __init__(
        self,
        *,
        high: float = HIGH,
        low: float = LOW,
        proc: str = "/proc",
        root: str = "/sys/fs/cgroup",
    ) -> None:
        numbers = all(isinstance(each, Real) and each is not True for each in (low, high))
        if not numbers or not 0.0 < low <= high <= 1.0:
            raise ConfigError(
                f"watermarks: found low {low!r:.40} and high {high!r:.40}, wanted numbers with "
                "0 < low <= high <= 1"
            )
        self.high, self.low = high, low
        self._proc, self._root, self._short = proc, root, False

    def read(self) -> MemoryUse | None:
        """The memory in use of the tightest limit; None if the system shows none."""
        found = [self._system(), *(self._group(folder) for folder in self._folders())]
        return max(
            (one for one in found if one is not None), key=lambda one: one.share, default=None
        )

    def excess(self) -> int:
        """Bytes to release to reach the lower watermark, from the moment use reaches the upper one
        until it is below the lower one; otherwise 0.
        """
        use = self.read()
        if use is None:
            return 0
        self._short = use.share >= (self.low if self._short else self.high)
        return max(0, use.used - int(self.low * use.limit)) if self._short else 0

    def allows(self, nbytes: int) -> bool:
        """Whether use is below the lower watermark, and would stay below the upper one with this
        many bytes more.
        """
        use = self.read()
        return use is None or (use.share < self.low and use.used + nbytes < self.high * use.limit)

    def limit(self) -> int | None:
        """The smallest of all limits, in bytes; None if the system shows none."""
        found = [self._system(), *(self._group(folder) for folder in self._folders())]
        return min((one.limit for one in found if one is not None), default=None)

    def _folders(self) -> list[Path]:
        return cgroup_folders("memory", f"{self._proc}/self/cgroup", self._root)

    def _system(self) -> MemoryUse | None:
        known = system_memory() if self._proc == "/proc" else None
        if known is not None:
            return MemoryUse(known[0] - known[1], known[0])
        sizes = _sizes(self._proc)
        try:
            return MemoryUse(sizes["MemTotal"] - sizes["MemAvailable"], sizes["MemTotal"])
        except KeyError:
            return None

    def _group(self, folder: Path) -> MemoryUse | None:
        for limit, used, total in (
            ("memory.max", "memory.current", ""),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
        ):
            try:
                most, now = int(system_text(folder / limit)), int(system_text(folder / used))
                if most < 1 << 60:  # version 1 writes a number where there is no limit
                    return MemoryUse(max(0, now - _cached(folder / "memory.stat", total)), most)
            except (OSError, ValueError):
                continue
        return None


def swap_bytes(proc: str = "/proc") -> int:
    """What the system could still move out of memory; 0 where it has no swap, or does not say."""
    return _sizes(proc).get("SwapFree", 0)


def _sizes(proc: str) -> dict[str, int]:
    """The bytes of `/proc/meminfo` by name; none where the system has no such file."""
    try:
        lines = system_text(Path(proc) / "meminfo").splitlines()
        return {
            name: int(rest.split()[0]) << 10
            for name, _, rest in (line.partition(":") for line in lines)
        }
    except (OSError, ValueError, IndexError):
        return {}


def _cached(stat: Path, total: str) -> int:
    """Bytes of files in a control group's memory."""
    try:
        numbers = dict(line.split() for line in system_text(stat).splitlines())
        return int(numbers[total + "active_file"]) + int(numbers[total + "inactive_file"])
    except (OSError, ValueError, KeyError):
        return 0
