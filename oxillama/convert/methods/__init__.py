"""How weights are quantised, one module for one program or more; importing this registers them."""

from oxillama.convert.methods import compressed, fp8, modelopt, words

__all__ = ["compressed", "fp8", "modelopt", "words"]
