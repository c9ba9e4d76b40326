"""From a file to a Program: the tensors and keys of a GGUF file are read, checked, lowered to a
tape and packed.

`builder` records an architecture, with nodes and tensors in `recorder` and attention in
`attention`; `blocks`, `latent`, `indexer` and `hyper_connections` hold what architectures share,
and `arch/` has one file per architecture family. `tensors` names weights, `state` describes what
layers keep, and `accounts` checks that every hyper-parameter of a file is accounted for. `lower`
fuses ops and assigns slots, `ops` defines every op of the tape in numpy, `reference` runs these
definitions, `rope` reads the rotation of positions, and `pooled` handles pooled rows.

`record` goes from a file to its tape, `tape_weights` from the tape to its weights, and `load` from
both to a model. `encoder_decoder` steps a decoder behind an encoder. `drafts` makes models that
draft for a loaded one; `eagle` records those of EAGLE-3, `dflash` those of DFlash (`extracts` is
what both share), `assistant` those of Gemma 4, and `mtp_file` joins files of layers that predict
further tokens with their model's. For images and audio, `media_builder` records an encoder,
`image_builder` one over patches and `audio_builder` one over frames; `encoders/` has one file per
family, `waves` the scores by distance of some, and `media_encoder` loads one. Nothing here knows
about requests or sessions.
"""

from .load import Model, load_model
from .record import ModelConfig, architectures

__all__ = ["Model", "ModelConfig", "architectures", "load_model"]
