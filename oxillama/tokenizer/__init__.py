"""From text to token ids and back, as a file's own vocabulary and chat template mean it.

`bridge` is the interface; `vocabulary` checks what the file says, `spm`, `bpe`, `unigram`,
`wordpiece` and `rwkv` encode, `splits` holds the expressions that cut words, `automaton` makes
tables of them, `unicode_sets` has the characters that they name, `specials` finds special tokens,
`stream` gives out whole characters, `template` renders conversations in the `sandbox`,
`builtin_templates` has some by name, `provenance` records what of a rendered text came from
messages, `json_file` reads a `tokenizer.json`.
"""

from oxillama.tokenizer.bridge import TokenizerBridge
from oxillama.tokenizer.provenance import TemplateText
from oxillama.tokenizer.stream import TextStream
from oxillama.tokenizer.template import ChatTemplate

__all__ = ["ChatTemplate", "TemplateText", "TextStream", "TokenizerBridge"]
