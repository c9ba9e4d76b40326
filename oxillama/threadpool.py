"""Lets `threadpoolctl` control this package's workers: importing this module registers the
controller.

    import oxillama.threadpool
    with threadpoolctl.threadpool_limits(1, user_api="oxillama"):
        engine.generate("...")      # on one worker, with the same bits

The limit belongs to the process. It applies to every program from its next step on, and to packing
and conversion.
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
        """The limit; without one, more than any program can have."""
        return self.dynlib.oxillama_get_num_threads() or threads.MAX_THREADS

    def set_num_threads(self, num_threads: int) -> None:
        """Use at most this many workers from now on."""
        self.dynlib.oxillama_set_num_threads(num_threads)

    def get_version(self) -> str:
        """The package's version."""
        return oxillama.__version__


threadpoolctl.register(OxillamaController)
