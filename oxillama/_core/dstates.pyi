"""Types of the determinised layer: see dstates.pyx."""

from contextlib import AbstractContextManager

from typing_extensions import disjoint_base

from oxillama._core.emission import Emission

@disjoint_base
class Dstates(Emission):
    def writes(self) -> AbstractContextManager[None]: ...
