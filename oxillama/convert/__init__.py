"""From Hugging Face model folders to GGUF files, without torch: the tensors, names and keys that
llama.cpp's converter writes.

`write` is the conversion. `folder` and `safetensors` read what is there, `mtp_layers` tells the
layers that predict further tokens, `quantised` and `methods` read weights of fewer bits, and
`tensor_plan` makes the tensors of the file from them. `general` and `vocabulary` make its keys, the
latter from `sentencepiece`, `tokenizer_json`, `token_lines`, `tekken`, `special_tokens` and
`chat_templates`, which share `tokens`. `checks` refuses a file that would be another model,
`accounts` what no family reads.

`family` is what a converter of one family is made of, `keys`, `shapes` and `modules` (those of
sentence-transformers) are the parts that families share, and `families` holds them all. `mmproj`
writes the file of a folder's image encoder: `encoder` is what a converter of one family of those is
made of, and `encoders` holds them.
"""

from oxillama.convert.folder import ModelFolder, is_model_folder
from oxillama.convert.mmproj import (
    convert_encoder,
    convertible_encoders,
    encoded_media,
    has_encoder,
)
from oxillama.convert.write import Converted, convert_folder, convertible

__all__ = [
    "Converted",
    "ModelFolder",
    "convert_encoder",
    "convert_folder",
    "convertible",
    "convertible_encoders",
    "encoded_media",
    "has_encoder",
    "is_model_folder",
]
