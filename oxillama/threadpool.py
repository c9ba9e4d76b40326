"""Makes `threadpoolctl` see this package's workers: importing this module registers the controller.

    import oxillama.threadpool
    with threadpoolctl.threadpool_limits(1, user_api="oxillama"):
        engine.generate("...")      # on one worker, with the same bits

The limit is the process's: it holds for every program from its next step on, and for packing and
conversion.
"""

from __future__ import annotations

import threadpoolctl

import oxillama
from oxillama._core import threads


class OxillamaController(threadpoolctl.LibController):
    """The workers of all programs of this process."""

    user_api = "oxillama"
    internal_api = "oxillama"
    filename_prefixes = ("threads.",)
    check_symbols = ("oxillama_get_num_threads", "oxillama_set_num_threads")

    def get_num_threads(self) -> int:
        """The limit; where none is set, more than any program may have."""
        return self.dynlib.oxillama_get_num_threads() or threads.MAX_THREADS

    def set_num_threads(self, num_threads: int) -> None:
        """Use at most so many workers from now on."""
        self.dynlib.oxillama_set_num_threads(num_threads)

    def get_version(self) -> str:
        """The package's version."""
        return oxillama.__version__


threadpoolctl.register(OxillamaController)
