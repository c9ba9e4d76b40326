"""Converts text to token ids and back, according to a file's own vocabulary and chat template.

`bridge` is the interface. `vocabulary` checks the file's keys; `spm`, `bpe`, `unigram`,
`wordpiece`, `rwkv` and `plamo` encode; `splits` has the expressions that split text into words,
`automaton` compiles them to tables, and `unicode_sets` has their character sets; `specials` finds
special tokens; `stream` returns whole characters, `offsets` counts them; `template` renders
conversations in the `sandbox`; `builtin_templates` has templates by name; `provenance` records
which parts of a rendered text came from messages; `json_file` reads a `tokenizer.json`.
"""

from oxillama.tokenizer.bridge import TokenizerBridge
from oxillama.tokenizer.offsets import TextOffsets
from oxillama.tokenizer.provenance import TemplateText
from oxillama.tokenizer.stream import TextStream
from oxillama.tokenizer.template import ChatTemplate

__all__ = ["ChatTemplate", "TemplateText", "TextOffsets", "TextStream", "TokenizerBridge"]
