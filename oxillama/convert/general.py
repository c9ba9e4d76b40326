"""The `general.*` keys of every file."""

from __future__ import annotations

from typing import Any

import numpy as np

from oxillama.convert.family import Hyper
from oxillama.convert.folder import ModelFolder
from oxillama.convert.tensor_plan import FLOATS, Planned
from oxillama.convert.tokens import KeyValues
from oxillama.errors import ConvertError, warn
from oxillama.quant.file import QUANTIZATION_VERSION

FILE_TYPES = {"F32": 0, "F16": 1, "BF16": 32, "MXFP4": 38, "Q8_0": 7, "Q4_0": 2}
# what generation_config.json says of sampling: our name, its type, theirs
_SAMPLING = (
    ("temp", "float32", ("temperature",)),
    ("top_k", "int32", ("top_k",)),
    ("top_p", "float32", ("top_p",)),
    ("min_p", "float32", ("min_p",)),
    ("xtc_probability", "float32", ("xtc_probability",)),
    ("xtc_threshold", "float32", ("xtc_threshold",)),
    ("penalty_last_n", "int32", ("penalty_last_n",)),
    ("penalty_repeat", "float32", ("penalty_repeat", "repetition_penalty")),
    ("mirostat", "int32", ("mirostat",)),
    ("mirostat_tau", "float32", ("mirostat_tau",)),
    ("mirostat_eta", "float32", ("mirostat_eta",)),
    # which only this program reads; of no effect at these values
    ("typical_p", "float32", ("typical_p",)),
    ("epsilon_cutoff", "float32", ("epsilon_cutoff",)),
    ("eta_cutoff", "float32", ("eta_cutoff",)),
)
_OFF = {"typical_p": 1.0, "epsilon_cutoff": 0.0, "eta_cutoff": 0.0}
# what it may say of generation that files have no place for, and the values that change nothing
_UNKEPT: dict[str, tuple[Any, ...]] = {
    **{"num_beams": (1,), "no_repeat_ngram_size": (0,), "penalty_alpha": (0,)},
    **{"guidance_scale": (1,), "bad_words_ids": ([],), "begin_suppress_tokens": ([],)},
    **dict.fromkeys(("top_h", "sequence_bias", "exponential_decay_length_penalty"), ()),
    **dict.fromkeys(("forced_bos_token_id", "forced_eos_token_id"), ()),
    **{"stop_strings": ([], ""), "min_length": (0,), "min_new_tokens": (0,)},
    "watermarking_config": (),
}


def general_keys(
    folder: ModelFolder, planned: list[Planned], wanted: str, name: str | None
) -> KeyValues:
    keys: KeyValues = {
        "general.type": ("model", "string"),
        "general.name": (name or folder.path.resolve().name, "string"),
        "general.size_label": (size_label(planned), "string"),
        "general.quantization_version": (QUANTIZATION_VERSION, "uint32"),
    }
    kinds = [one.type_name for one in planned if len(one.shape) > 1]
    most = wanted if wanted in FLOATS else max(FILE_TYPES, key=kinds.count)
    if "MXFP4" in kinds:
        most = "MXFP4"
    keys["general.file_type"] = FILE_TYPES[most], "uint32"
    return keys | _sampling(folder)


def _sampling(folder: ModelFolder) -> KeyValues:
    """The sampler that generation_config.json recommends; a warning names what of it has no
    place.
    """
    keys: KeyValues = {}
    label = f"{folder.path / 'generation_config.json'}"
    said = Hyper(folder.json("generation_config.json"), label)
    unkept = [name for name, off in _UNKEPT.items() if said.get(name) not in (None, *off)]
    if unkept:
        warn(f"{label}: {', '.join(unkept)}: a GGUF file has no place for this recommendation")
    for ours, kind, names in _SAMPLING:
        value = said.number(*names, default=None)
        if value is not None and kind == "int32":
            if value != int(value) or abs(value) >= 1 << 31:
                raise ConvertError(
                    f"{said.label}: {names[0]}: found {said.get(*names)!r:.80}, wanted an integer "
                    "of 32 bits"
                )
            value = int(value)
        if value is not None and value != _OFF.get(ours):
            keys[f"general.sampling.{ours}"] = value, kind
    if not said.flag("do_sample", default=True):  # the likeliest token, whatever else it says
        keys["general.sampling.temp"] = 0.0, "float32"
    return keys


def size_label(planned: list[Planned]) -> str:
    """The number of weights in a word, as the GGUF naming convention has it: 1.2B, 8x7B."""
    total = sum(int(np.prod(one.shape)) for one in planned)
    stacked = [one for one in planned if "_exps." in one.name and len(one.shape) == 3]
    if not stacked:
        return _rounded(total)
    count = stacked[0].shape[0]
    routed = sum(int(np.prod(one.shape)) for one in stacked)
    return f"{count}x{_rounded(total - routed + routed // count)}"


def _rounded(count: int) -> str:
    exponent = next((power for power in (12, 9, 6) if count > 10**power), 3)
    value = count / 10**exponent
    digits = max(2 - len(str(round(value)).lstrip("0")), 0)
    return f"{value:.{digits}f}{ {12: 'T', 9: 'B', 6: 'M', 3: 'K'}[exponent] }"
