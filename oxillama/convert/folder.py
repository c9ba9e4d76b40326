"""A Hugging Face model folder: its configuration, its tokenizer's files and its tensors by name."""

from __future__ import annotations

import json
import os
import stat
from functools import cached_property
from pathlib import Path
from typing import Any

from oxillama.convert import methods  # noqa: F401  (registers them)
from oxillama.convert.quantised import dequantised
from oxillama.convert.safetensors import StoredTensor, Tensor, read_safetensors
from oxillama.durable import open_without_waiting
from oxillama.errors import ConvertError, listed

INDEX = "model.safetensors.index.json"
_PICKLED = (".bin", ".pt", ".pth", ".ckpt")
_MOST_BYTES = 1 << 28  # of a file that is read whole
# values of a text part that published folders (LLaVA 1.5, Pixtral, Gemma 3) leave to transformers
_SIZES = {"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32}
_UNSAID: dict[str, dict[str, Any]] = {
    "llama": {
        **_SIZES,
        "intermediate_size": 11008,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-6,
        "vocab_size": 32000,
    },
    "mistral": {
        **_SIZES,
        "intermediate_size": 14336,
        "max_position_embeddings": 131072,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-6,
        "vocab_size": 32000,
    },
    "gemma3_text": {
        "head_dim": 256,
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "max_position_embeddings": 131072,
        "num_attention_heads": 8,
        "num_hidden_layers": 26,
        "num_key_value_heads": 4,
        "query_pre_attn_scalar": 256,
        "rms_norm_eps": 1e-6,
        "rope_local_base_freq": 10000.0,
        "rope_theta": 1000000.0,
        "sliding_window": 4096,
        "tie_word_embeddings": True,
        "vocab_size": 262208,
    },
}


def _each(names: str, **values: Any) -> dict[str, dict[str, Any]]:
    return {f"{name}ForCausalLM": values for name in names.split()}


# values that configurations leave to their class in transformers, where a file would say something
# else by the lack of its key, by class
_OF_CLASS: dict[str, dict[str, Any]] = {
    **_each("Apertus", rope_theta=12_000_000.0),
    **_each("BitNet Cohere Ernie4_5 Ernie4_5_Moe Olmo3", rope_theta=500_000.0),
    **_each("Lfm2 Lfm2Moe Mixtral PhiMoE Phimoe", rope_theta=1_000_000.0),
    **_each("GptOss", rope_theta=150_000.0),
    **_each("MiniMaxM2", rope_theta=5_000_000.0),
    **_each("SmolLM3", rope_theta=2_000_000.0),
    **_each("Glm Glm4 Glm4Moe Phi", partial_rotary_factor=0.5),
    **_each("StableLm StableLMEpoch Qwen3Next", partial_rotary_factor=0.25),
    **_each(
        "Granite GraniteMoe GraniteMoeShared GraniteMoeHybrid GraniteSWA GraniteMoeSWA",
        attention_multiplier=1.0,
    ),
    **_each("Exaone4", sliding_window=4096, sliding_window_pattern=4),
    **_each("Gemma2 Gemma3", query_pre_attn_scalar=256),
    **_each("DeepseekV3", norm_topk_prob=True, routed_scaling_factor=2.5),
    **_each("Glm4MoeLite", norm_topk_prob=True, routed_scaling_factor=1.8),
    **_each("Qwen3Moe", norm_topk_prob=False),
}


# and the rotations of those whose class has another than the plain one where neither
# `rope_parameters` nor `rope_scaling` says any
_ROTATION_OF_CLASS: dict[str, dict[str, Any]] = {
    "ApertusForCausalLM": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
    "GptOssForCausalLM": {
        "rope_type": "yarn",
        "factor": 32.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "truncate": False,
        "original_max_position_embeddings": 4096,
    },
}


def is_model_folder(path: str | os.PathLike[str]) -> bool:
    """Whether a path is a folder with a Hugging Face config.json."""
    return os.path.isfile(Path(path, "config.json"))


def read_whole(path: Path) -> bytes | None:
    """The bytes of a small file, None where there is none. ConvertError for a link to a file that
    is missing, and for what is no regular file or larger than 256 MiB.
    """
    try:
        with open(path, "rb", opener=open_without_waiting) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise ConvertError(f"{path}: not a regular file")
            if status.st_size > _MOST_BYTES:
                raise ConvertError(f"{path}: {status.st_size} bytes, wanted at most {_MOST_BYTES}")
            return file.read(_MOST_BYTES)
    except FileNotFoundError:
        if os.path.islink(path):
            raise ConvertError(f"{path}: a link to {os.readlink(path)}, which is missing") from None
        return None
    except (OSError, ValueError) as error:
        if isinstance(error, ConvertError):
            raise
        what = getattr(error, "strerror", None) or error
        raise ConvertError(f"{path}: cannot be read: {what}") from error


class ModelFolder:
    """A folder as `save_pretrained` writes it. ConvertError, naming the file, for what is missing
    or malformed; pickled weights are never opened.

    whole: config.json, of a model that speaks too that of what hears, sees and writes; config: the
    same with the values of the language model before all others.
    """

    whole: dict[str, Any]

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        if not os.path.isdir(self.path):
            raise ConvertError(f"{self.path}: found no folder, wanted one with a config.json")
        self.config: dict[str, Any] = self._config()

    def json(self, name: str, *, required: bool = False) -> dict[str, Any]:
        """A JSON object of the folder; empty where the file is missing and not required."""
        value = self._json(name, required=required)
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise ConvertError(
                f"{self.path / name}: found {type(value).__name__}, wanted a JSON object"
            )
        return value

    def modules(self) -> list[tuple[str, str]]:
        """The modules of a sentence-transformers folder: last word of the type, and its folder."""
        listed = self._json("modules.json")
        if listed is None:
            return []
        found = []
        for one in listed if isinstance(listed, list) else [listed]:
            kind, place = (one.get("type"), one.get("path")) if isinstance(one, dict) else (0, 0)
            if not isinstance(kind, str) or not isinstance(place, str) or Path(place).name != place:
                raise ConvertError(f"{self.path}/modules.json: found {one!r:.80}, wanted a module")
            found.append((kind.rpartition(".")[2], place))
        return found

    def _json(self, name: str, *, required: bool = False) -> Any:
        path = self.path / name
        held = read_whole(path)
        if held is None:
            if required:
                raise ConvertError(f"{path}: missing, wanted a Hugging Face model folder")
            return None
        try:
            return json.loads(held.decode("utf-8"))
        except (ValueError, RecursionError) as error:
            raise ConvertError(f"{path}: found no JSON: {error}") from None

    def _config(self) -> dict[str, Any]:
        config = self.json("config.json", required=True)
        thinker = config.pop("thinker_config", None)
        if isinstance(thinker, dict):  # what hears, sees and writes of a model that speaks too
            config = {**thinker, **config}
        self.whole = config
        for name in ("text_config", "llm_config", "lm_config", "language_config", "lfm"):
            text = config.get(name)
            if isinstance(text, dict):  # a model of text and images: the text part counts here
                unsaid = _UNSAID.get(str(text.get("model_type")), {})
                config = {**unsaid, **config, **text} | {
                    key: value
                    for key, value in config.items()
                    if key == "architectures"
                    or (key.endswith("_token_id") and value is not None)
                    or (key == "quantization_config" and text.get(key) is None)
                }
                del config[name]
                break
        kind = config.get("architectures")
        kind = kind[0] if isinstance(kind, list) and kind else None
        if not isinstance(kind, str):
            return config
        config = {**_OF_CLASS.get(kind, {}), **config}
        if config.get("rope_parameters") is None and not config.get("rope_scaling"):
            rotation = _ROTATION_OF_CLASS.get(kind)
            return config if rotation is None else {**config, "rope_parameters": {**rotation}}
        return config

    @property
    def architecture(self) -> str:
        """The class that transformers would make of the folder."""
        names = self.config.get("architectures")
        if not isinstance(names, list) or not names or not isinstance(names[0], str):
            raise ConvertError(
                f"{self.path}/config.json: architectures: found {names!r:.80}, wanted a class name"
            )
        return names[0]

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        """Every tensor of the model by name: those that are stored, in the order of the files, but
        a quantised weight as one tensor of floats.
        """
        return dequantised(self.stored, self.config, f"{self.path}/config.json")

    @cached_property
    def stored(self) -> dict[str, StoredTensor]:
        """Every tensor of the files by name."""
        found: dict[str, StoredTensor] = {}
        paths = self._shards()
        absent = [path.name for path in paths if not os.path.isfile(path)]
        if absent:
            more = (
                f" ({len(absent)} of {len(paths)}: {listed(absent, 4)})" if len(absent) > 1 else ""
            )
            raise ConvertError(f"{self.path / absent[0]}: missing, {INDEX} names it{more}")
        for path in paths:
            for name, tensor in read_safetensors(path).items():
                if name in found:
                    raise ConvertError(f"{path}: {name} is in another file too")
                found[name] = tensor
        return found

    def _shards(self) -> list[Path]:
        places = self._places()
        if places:
            return [self.path / name for name in sorted(set(places.values()))]
        whole = self.path / "model.safetensors"
        # whatever else there is: an adapter, or the same weights under other names
        files = [whole] if whole.is_file() else sorted(self.path.glob("*.safetensors"))
        if not files:
            pickled = [one.name for one in self.path.iterdir() if one.suffix in _PICKLED]
            raise ConvertError(
                f"{self.path}: found "
                f"{pickled[0] + ' (pickled, could run code)' if pickled else 'no weights'}, wanted "
                "safetensors files"
            )
        if len(files) > 1:
            raise ConvertError(f"{self.path}: {len(files)} safetensors files without {INDEX}")
        return files

    def _places(self) -> dict[str, str]:
        """The file of each tensor by the index; empty without one."""
        index = self.json(INDEX)
        places = index.get("weight_map") if index else {}
        if not isinstance(places, dict) or not all(
            isinstance(name, str) and Path(name).name == name for name in places.values()
        ):
            raise ConvertError(
                f"{self.path / INDEX}: weight_map: found {places!r:.80}, wanted an object of "
                "tensor and file names"
            )
        return places

    def check_complete(self) -> None:
        """ConvertError where the index names a tensor that no file holds."""
        absent = [name for name in self._places() if name not in self.stored]
        if absent:
            more = f" ({len(absent)} such: {listed(absent, 4)})" if len(absent) > 1 else ""
            raise ConvertError(
                f"{self.path}: {absent[0]}: named by {INDEX}, found in no file{more}"
            )
