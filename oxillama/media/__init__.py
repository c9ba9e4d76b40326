"""Images and audio as a language model takes them: `features` are the rows that replace tokens,
`placement` says where among the tokens of a session they are, `prompt` is a prompt that has some,
`messages` finds the parts of a chat that hold them, `tokens` says what a family writes around them,
`sources` gets the bytes of a file that a caller names, and `piece_cache` holds the pieces of those
that come again. `oxillama.vision` and
`oxillama.audio` make the features.
"""

from oxillama.media.features import MediaFeatures as MediaFeatures
from oxillama.media.tokens import MediaTokens as MediaTokens
