"""How weights are quantised; importing this package registers all methods.

`fp8` as DeepSeek publishes it, `compressed` (compressed-tensors), `modelopt`, and `words`: GPTQ and
AWQ, whose codes are in words of 32 bits.
"""

from oxillama.convert.methods import compressed, fp8, modelopt, words

__all__ = ["compressed", "fp8", "modelopt", "words"]
