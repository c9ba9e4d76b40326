"""Shared by all tests: what they may not touch of their user's, how many processes run them, and
where the cases made by other programs lie, when this checkout has them beside it.
"""

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings

# values are judged, not times: a busy machine is no failure
settings.register_profile("oxillama", deadline=None)
settings.load_profile("oxillama")
# no test writes to its user's folders; those of sidecars say where
os.environ["OXILLAMA_SIDECAR"] = "0"
_own = tempfile.TemporaryDirectory(prefix="oxillama-tests-")
os.environ["OXILLAMA_KEY_FILE"] = str(Path(_own.name) / "key")
# programs that tests start find modules compiled, also where a checkout is to stay as it is
if os.environ.pop("PYTHONDONTWRITEBYTECODE", ""):
    os.environ["PYTHONPYCACHEPREFIX"] = str(Path(_own.name) / "pycache")
CASES = Path(__file__).resolve().parents[2] / "shared" / "cases"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers():
    """What `-n auto` means: a process for each core, and no more than four, since engines of the
    tests have threads for all cores.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return min(cores or 1, 4)


@pytest.fixture(scope="session")
def cases():
    """The folder of facts made by other programs; a test that asks for it is skipped where a user
    has none.
    """
    if not CASES.is_dir():
        pytest.skip("no cases")
    return CASES


@pytest.fixture
def links(tmp_path_factory):
    """Skips a test where this user may make no symbolic links (Windows without its developer mode)
    or nothing follows them.
    """
    target = tmp_path_factory.mktemp("links") / "target"
    target.touch()
    link = target.with_name("link")
    try:
        link.symlink_to(target)
        followed = link.samefile(target)
    except OSError:
        followed = False
    if not followed:
        pytest.skip("no symbolic links here")


@pytest.fixture
def folder(tmp_path):
    """A whole Hugging Face folder of a tiny Llama."""
    from tests.convert.folders import tiny_llama

    return tiny_llama(tmp_path / "model")
