"""Quantisation: rows of numbers to blocks and back, importance matrices, and whole files from any
format to any other.

`rows` has `formats`, `dequantize` and `quantize`; `recipes` says which tensor of a model gets which
format, by its name and context, which `contexts` reads from a file; `file` applies a recipe to a
whole file; `imatrix` reads and writes importance matrices.
"""

from oxillama.quant.file import Conversion, TensorPlan, quantize_file
from oxillama.quant.imatrix import check_imatrix_path, read_imatrix, write_imatrix
from oxillama.quant.recipes import RECIPES, Recipe
from oxillama.quant.rows import Format, dequantize, format_named, formats, quantize

__all__ = [
    "RECIPES",
    "Conversion",
    "Format",
    "Recipe",
    "TensorPlan",
    "check_imatrix_path",
    "dequantize",
    "format_named",
    "formats",
    "quantize",
    "quantize_file",
    "read_imatrix",
    "write_imatrix",
]
