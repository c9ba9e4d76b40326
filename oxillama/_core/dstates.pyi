"""Types of the determinised layer: see dstates.pyx."""

from typing_extensions import disjoint_base

from oxillama._core.emission import Emission

@disjoint_base
class Dstates(Emission): ...
