"""The sampler that a model's file recommends: its `general.sampling.*` keys, as llama.cpp's
converter writes them.

Such keys change those fields of the engine's default sampler, unless the caller passes a sampler to
`load`. A key that cannot be honoured is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from oxillama.errors import ConfigError, ModelError
from oxillama.sampling import SamplerConfig

_PREFIX = "general.sampling."
_FIELDS = {
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "xtc_probability": "xtc_probability",
    "xtc_threshold": "xtc_threshold",
    "temp": "temperature",
    "penalty_last_n": "repetition_window",
    "penalty_repeat": "repetition_penalty",
    "mirostat": "mirostat",
    "mirostat_tau": "mirostat_tau",
    "mirostat_eta": "mirostat_eta",
    # which this program's converter writes
    "typical_p": "typical_p",
    "epsilon_cutoff": "epsilon_cutoff",
    "eta_cutoff": "eta_cutoff",
}
# llama.cpp's samplers, each with its letter; None where there is no such stage here
_STAGES = {
    "penalties": ("e", "penalties"),
    "dry": ("d", "dry"),
    "top_n_sigma": ("s", "top_n_sigma"),
    "top_k": ("k", "top_k"),
    "typ_p": ("y", "typical"),
    "typical_p": ("y", "typical"),
    "top_p": ("p", "top_p"),
    "min_p": ("m", "min_p"),
    "xtc": ("x", "xtc"),
    "temperature": ("t", "temperature"),
}


def recommended_sampler(metadata: Mapping[str, Any]) -> SamplerConfig | None:
    """The default sampler with the fields in the file, None if it has none; ModelError for an
    unknown key or a value that cannot be honoured.
    """
    given: dict[str, Any] = {}
    for key in metadata:
        if not key.startswith(_PREFIX):
            continue
        name, value = key.removeprefix(_PREFIX), metadata[key]
        if name == "sequence":
            given["samplers"] = _stages(key, value)
        elif name not in _FIELDS:
            raise ModelError(
                f"{key}: found {value!r:.40}, wanted one of {', '.join((*_FIELDS, 'sequence'))}"
            )
        elif name == "top_k" and value == -1:  # as llama.cpp and vLLM turn it off
            given["top_k"] = 0
        else:
            given[_FIELDS[name]] = value
    if not given:
        return None
    try:
        return SamplerConfig(**given)
    except ConfigError as error:
        raise ModelError(f"{_PREFIX}*: {error}") from None


def _stages(key: str, value: Any) -> tuple[str, ...]:
    """The stages of a sequence: llama.cpp's names separated by semicolons, or its letters."""
    if not isinstance(value, str):
        raise ModelError(f"{key}: found {value!r:.40}, wanted a text")
    letters = dict(_STAGES.values())
    parts = [part for part in value.split(";") if part]
    names = {name: stage for name, (_, stage) in _STAGES.items()}
    known = names if ";" in value or (parts and parts[0] in names) else letters
    out = [known.get(part) for part in (parts if known is names else value)]
    if None in out:
        part = (parts if known is names else value)[out.index(None)]
        raise ModelError(f"{key}: found the sampler {part!r}, wanted some of {', '.join(names)}")
    return tuple(dict.fromkeys(stage for stage in out if stage is not None))
