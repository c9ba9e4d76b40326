"""Files of the layers alone that predict further tokens (multi-token prediction, `mtp-*.gguf`),
beside a model's file that lacks them.
"""

from __future__ import annotations

from oxillama.errors import ConfigError
from oxillama.gguf import GgufReader
from oxillama.gguf.keys import Keys

_KEY = "nextn_predict_layers"


def is_further(reader: GgufReader) -> bool:
    """Whether a file holds such layers and none before them."""
    return any(name.endswith(".nextn.eh_proj.weight") for name in reader.tensors) and not any(
        name.startswith("blk.0.") for name in reader.tensors
    )


def with_further(model: GgufReader, further: GgufReader) -> GgufReader:
    """A model's file with the layers of another file behind its own; ConfigError unless they were
    made for such a model.
    """
    its, keys = Keys(model.metadata), Keys(further.metadata)
    for name, found, wanted in (
        ("general.architecture", keys.arch, its.arch),
        *(
            (keys.name(key), keys.integer(key), its.integer(key))
            for key in ("embedding_length", "attention.head_count")
        ),
    ):
        if found != wanted:
            raise ConfigError(f"draft: found {name} {found!r}, wanted {wanted!r}, as in the model")
    if its.integer(_KEY, default=0) and any(".nextn." in name for name in model.tensors):
        raise ConfigError(
            f"draft: found {keys.integer(_KEY)} layers that predict further tokens beside those of "
            'the model\'s own file, wanted speculative="mtp"'
        )
    layers = its.integer("block_count") - its.integer(_KEY, default=0)
    first = keys.integer("block_count") - keys.integer(_KEY)
    if first != layers:
        raise ConfigError(
            f"draft: found layers that follow {first} others, wanted {layers}, the layers of the "
            "model"
        )
    names = {name: name for name in further.tensors if name.startswith("blk.")}
    own = [key for key in further.metadata if key.startswith(f"{keys.arch}.")]
    return model.joined(further, names, own)
