"""Which instruction sets run: `OXILLAMA_ISA` forces one or is refused, and cpu_info says what was
found.
"""

import os
import subprocess
import sys

import pytest

from oxillama._core.kernels import cpu_info, isa_active, isa_available, lanes_available
from oxillama.errors import ConfigError


def test_scalar_is_always_there_and_the_best_is_the_default(monkeypatch):
    monkeypatch.delenv("OXILLAMA_ISA", raising=False)
    assert isa_available()[0] == "scalar"
    assert isa_active() == isa_available()[-1]
    assert set(isa_available()) <= set(lanes_available())


@pytest.mark.parametrize("isa", isa_available())
def test_the_environment_forces_an_instruction_set(monkeypatch, isa):
    monkeypatch.setenv("OXILLAMA_ISA", isa)
    assert isa_active() == isa and cpu_info()["isa"] == isa


def test_an_instruction_set_that_cannot_run_is_refused_by_name(monkeypatch):
    monkeypatch.setenv("OXILLAMA_ISA", "avx1024")
    with pytest.raises(ConfigError, match="avx1024"):
        cpu_info()


def test_a_forced_process_computes_with_it_and_gives_the_same_bits():
    code = (
        "import numpy as np; from oxillama._core.matmul import matmul; from oxillama._core.panels "
        "import PackedMatrix; from oxillama._core.kernels import isa_active;"
        "w = PackedMatrix((np.arange(32 * 18) % 60).astype(np.uint8), 'Q4_0', 32, 32);"
        "print(isa_active(), matmul(w, np.sin(np.arange(96, dtype=np.float32)).reshape(3, "
        "32)).tobytes().hex())"
    )
    said = {}
    for isa in isa_available():
        env = dict(os.environ, OXILLAMA_ISA=isa)
        name, bits = subprocess.run(
            [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
        ).stdout.split()
        assert name == isa
        said[bits] = isa
    assert len(said) == 1


def test_cpu_info_counts_what_this_process_may_use():
    info = cpu_info()
    assert (
        info["allowed_cpus"] >= 1 and info["physical_cores"] >= 1 and info["default_threads"] >= 1
    )
    assert info["model"] and info["isa"] in info["isa_available"]
