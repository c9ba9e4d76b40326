"""Every family of encoders that can be converted; importing this package registers them.

`siglip`, `clip` (LLaVA), `internvl`, `pixtral`, `qwen`, `glm`, `llama4`, `gemma3n`, `gemma4`,
`granite`, `kimi` (MoonViT), `minicpm`, `minimax`, `muse`, `step3`, `radio` (Nemotron); for
documents: `deepseek_ocr`, `dots`, `exaone`, `hunyuan`, `paddleocr`, `youtu`; of audio: `audio`,
`conformer` and `granite_speech`, and in `qwen`, `gemma3n` and `gemma4`.
"""

from importlib import import_module
from pkgutil import iter_modules

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
