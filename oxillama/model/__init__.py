"""From a file to a Program: what is needed of a GGUF file is read, named, checked, lowered to a
tape and packed.

`builder` records what an architecture asks for, `blocks` holds what architectures share, `arch/`
has one file each, `tensors` names weights, `state` says what layers keep, `accounts` holds every
hyper-parameter of a file to account, `lower` fuses and assigns slots, `ops` says in numpy what
every op of the tape means, `reference` runs that meaning, `rope` reads how positions are rotated,
`pooled` holds what is done to a pooled row, `load` ties them together. Of images: `image_builder`
records an encoder, `encoders/` has one file per family, `image_encoder` loads one. Nothing here
knows about requests or sessions.
"""

from .load import Model, ModelConfig, architectures, load_model

__all__ = ["Model", "ModelConfig", "architectures", "load_model"]
