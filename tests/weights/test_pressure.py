"""How near memory is to its limit, read from files as the system writes them."""

import pytest

from oxillama.errors import ConfigError
from oxillama.weights.pressure import MemoryPressureProbe, MemoryUse, swap_bytes

MEMINFO = "MemTotal:       1000 kB\nMemFree:         100 kB\nMemAvailable:    {} kB\n"


@pytest.fixture
def system(tmp_path):
    """(probe, write) over folders that stand for /proc and /sys/fs/cgroup."""
    proc, root = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    root.mkdir()

    def write(available, *, groups="", **files):
        (proc / "meminfo").write_text(MEMINFO.format(available))
        (proc / "self" / "cgroup").write_text(groups)
        for name, text in files.items():
            path = root / name.replace("__", "/").replace("_dot_", ".")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    return MemoryPressureProbe(proc=str(proc), root=str(root)), write


def test_the_system(system):
    probe, write = system
    write(600)
    assert probe.read() == MemoryUse(400 << 10, 1000 << 10)
    assert probe.limit() == 1000 << 10


def test_swap_that_is_free(tmp_path):
    assert swap_bytes(str(tmp_path)) == 0
    (tmp_path / "meminfo").write_text(MEMINFO.format(600))
    assert swap_bytes(str(tmp_path)) == 0
    (tmp_path / "meminfo").write_text(MEMINFO.format(600) + "SwapFree:  70 kB\n")
    assert swap_bytes(str(tmp_path)) == 70 << 10


def test_a_group_of_version_2_that_is_tighter(system):
    probe, write = system
    write(
        900,
        groups="0::/a/b\n",
        a__b__memory_dot_max="1000\n",
        a__b__memory_dot_current="900\n",
        a__b__memory_dot_stat="anon 650\nactive_file 100\ninactive_file 150\n",
        a__memory_dot_max="max\n",
        a__memory_dot_current="900\n",
    )
    assert probe.read() == MemoryUse(650, 1000)  # files in the cache yield
    assert probe.limit() == 1000


def test_a_group_of_version_1(system):
    probe, write = system
    write(
        900,
        groups="4:memory:/a\n0::/\n",
        memory__a__memory_dot_limit_in_bytes="2000\n",
        memory__a__memory_dot_usage_in_bytes="1900\n",
        memory__a__memory_dot_stat="total_active_file 100\ntotal_inactive_file 0\n",
        memory__memory_dot_limit_in_bytes=f"{(1 << 63) - 4096}\n",
        memory__memory_dot_usage_in_bytes="5\n",
    )
    assert probe.read() == MemoryUse(1800, 2000)


def test_short_from_the_upper_watermark_down_to_the_lower_one(system):
    probe, write = system
    for available, excess in ((200, 0), (101, 0), (100, 150), (200, 50), (251, 0), (200, 0)):
        write(available)
        assert probe.excess() == excess << 10, available
    write(300)
    assert probe.allows(190 << 10) and not probe.allows(200 << 10)
    write(240)
    assert not probe.allows(0)


def test_a_system_that_says_nothing(tmp_path):
    probe = MemoryPressureProbe(proc=str(tmp_path), root=str(tmp_path))
    assert probe.read() is None and probe.limit() is None
    assert probe.excess() == 0 and probe.allows(1 << 40)


@pytest.mark.parametrize(("low", "high"), ((0.0, 0.9), (0.95, 0.9), (0.5, 1.1)))
def test_watermarks_are_checked(low, high):
    with pytest.raises(ConfigError, match="watermarks"):
        MemoryPressureProbe(low=low, high=high)
