"""Make a file smaller

On the command line, `oxillama quantize IN.gguf OUT.gguf Q4_K_M` does the same.
"""

from pathlib import Path

import oxillama
from oxillama.quant import quantize_file

source = oxillama.embedded_path()
quantize_file(source, "small.gguf", "Q4_K_M")
print(Path("small.gguf").stat().st_size < source.stat().st_size)
with oxillama.load("small.gguf") as engine:
    print(len(engine.generate("Once upon a time", max_tokens=8, temperature=0).tokens))
