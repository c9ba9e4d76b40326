"""How weights are quantised; importing this package registers all methods.

`fp8` as DeepSeek publishes it, `bitsandbytes`, `compressed` (compressed-tensors), `modelopt`, and
`words`: GPTQ and AWQ, whose codes are in words of 32 bits.
"""

from oxillama.convert.methods import bitsandbytes, compressed, fp8, modelopt, words

__all__ = ["bitsandbytes", "compressed", "fp8", "modelopt", "words"]
