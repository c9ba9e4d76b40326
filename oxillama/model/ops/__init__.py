"""The ops of the tape. An op is one class with what it reads and writes, whether its layer keeps
state, the rows it runs over, and its definition in numpy.

  op           the base class, the table `OPS`, and the `Frame` that definitions work on
  numeric      functions that definitions have in common
  embedding    rows of tokens and positions
  dense        norms, products, and rows moved
  attention    rotation, stored keys, attention, keys of blocks and choices of them
  experts      routes, products with the matrices of experts
  recurrent    convolutions, state spaces, linear attention
  elementwise  sums, products, activations and measures

The compiled tape is right if it agrees with these definitions (`reference.py` runs them, `oxillama
doctor` compares). A new op starts with a class here: `Builder.op` records it and `lower.py` emits
it without further code.
"""

from oxillama.model.ops import attention, dense, elementwise, embedding, experts, recurrent
from oxillama.model.ops.op import OPS, OUTPUT, Frame, Op, RowDomain

__all__ = [
    "OPS",
    "OUTPUT",
    "Frame",
    "Op",
    "RowDomain",
    "attention",
    "dense",
    "elementwise",
    "embedding",
    "experts",
    "recurrent",
]
