"""How weights are quantised; importing this package registers all methods.

`fp8` as DeepSeek publishes it, `bitsandbytes`, `compressed` (compressed-tensors), `modelopt`, and
`gptq_awq`: GPTQ and AWQ, whose codes are in words of 32 bits.
"""

from oxillama.convert.methods import bitsandbytes, compressed, fp8, gptq_awq, modelopt

__all__ = ["bitsandbytes", "compressed", "fp8", "gptq_awq", "modelopt"]
