"""Tests on a cluster of two nodes in this machine; they run where OXILLAMA_TEST_ALL is set
(tools/test_all.sh), and need the extra `ray`.
"""

import os
from pathlib import Path

import hypothesis  # noqa: F401  # else its plugin does so at the end, beside the threads of Ray
import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]

# the modules import ray, which the light suite does not need
collect_ignore_glob = [] if os.environ.get("OXILLAMA_TEST_ALL") else ["test_*.py"]


def pytest_collection_modifyitems(items):
    for item in items:
        if HERE in Path(item.path).parents:
            item.add_marker(pytest.mark.ray)


def _added(cluster, **node):
    """A node of a cluster; Ray gives one 30 seconds to start, which the first one on a machine with
    much to do, whose files nobody has read yet, may not keep to.
    """
    for left in (2, 1, 0):
        try:
            return cluster.add_node(**node)
        except Exception as error:
            if not left or "timed out during startup" not in str(error):
                raise


@pytest.fixture(scope="session")
def cluster():
    """Two nodes of two CPUs each, as Ray counts them, and a driver connected to them."""
    os.environ["PYTHONPATH"] = str(ROOT)
    # what else this machine does with its memory is nothing that these tests are about
    os.environ.update({"RAY_USAGE_STATS_ENABLED": "0", "RAY_memory_monitor_refresh_ms": "0"})
    import ray
    from ray.cluster_utils import Cluster

    node = {"num_cpus": 2, "object_store_memory": 80 << 20, "memory": 2 << 30}
    made = Cluster()
    _added(made, **node, include_dashboard=False)
    _added(made, **node)
    ray.init(address=made.address, log_to_driver=False, logging_level="ERROR")
    ray.data.DataContext.get_current().enable_progress_bars = False
    yield made
    ray.shutdown()
    for node in (*made.worker_nodes, made.head_node):
        made.remove_node(node, allow_graceful=False)
    made.shutdown()


@pytest.fixture(scope="session")
def engine():
    """What a single process says."""
    import oxillama

    with oxillama.load(num_threads=1) as loaded:
        yield loaded
