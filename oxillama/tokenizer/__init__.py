"""From text to token ids and back, as a file's own vocabulary and chat template mean it.

`bridge` is the door; `vocabulary` checks what the file says, `spm`, `bpe`, `unigram`, `wordpiece`
and `rwkv` encode, `splits` holds the words' expressions, `specials` finds special tokens, `stream`
gives out whole characters, `chat` renders conversations in the `sandbox`, `json_file` reads a
`tokenizer.json`.
"""

from oxillama.tokenizer.bridge import TokenizerBridge
from oxillama.tokenizer.chat import ChatTemplate
from oxillama.tokenizer.stream import TextStream

__all__ = ["ChatTemplate", "TextStream", "TokenizerBridge"]
