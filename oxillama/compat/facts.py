"""What programs ask llama_cpp's module itself, often as they import it: its version, and what this
machine and this build can do.
"""

from __future__ import annotations

from oxillama._core.kernels import cpu_info

# the release of llama-cpp-python whose interface this is, which programs compare with their own
__version__ = "0.3.36"


def llama_backend_init() -> None:
    """Nothing: an engine begins with its model."""


def llama_backend_free() -> None:
    """Nothing: an engine ends with its model."""


def llama_supports_gpu_offload() -> bool:
    """False: everything runs on the CPU."""
    return False


def llama_supports_mmap() -> bool:
    """True: model files are mapped."""
    return True


def llama_supports_mlock() -> bool:
    """False: `use_mlock` is refused."""
    return False


def llama_supports_rpc() -> bool:
    """False: a model runs in one process."""
    return False


def llama_max_devices() -> int:
    """1: the CPU."""
    return 1


def llama_print_system_info() -> bytes:
    """The kernels that run and the processor's features that kernels use, in llama.cpp's form."""
    info = cpu_info()
    facts = [f"ISA = {info['isa']}", *(f"{name.upper()} = 1" for name in info["features"])]
    return f"CPU : {' | '.join(facts)} | ".encode()


__all__ = ["__version__", *(name for name in globals() if name.startswith("llama_"))]
