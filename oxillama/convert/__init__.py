"""From Hugging Face model folders to GGUF files, without torch: the tensors, names and keys that
llama.cpp's converter writes.

`write` is the conversion; `folder` and `safetensors` read what is there, `quantised` and `methods`
weights of fewer bits, `sentencepiece` and `vocabulary` the tokenizer's files; `family` is what a
converter of one family is made of, `keys` and `shapes` are the parts that families share, and
`families` holds them all.
"""

from oxillama.convert.folder import ModelFolder, is_model_folder
from oxillama.convert.write import Converted, convert_folder, convertible

__all__ = ["Converted", "ModelFolder", "convert_folder", "convertible", "is_model_folder"]
