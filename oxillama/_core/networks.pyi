"""Types of the rule networks: see networks.pyx."""

from typing_extensions import disjoint_base

@disjoint_base
class Networks: ...
