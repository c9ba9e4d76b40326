"""The parts of a converter for a model family: hyper-parameters read by name, rules that rename or
rearrange tensors, and a registry by the class name in transformers.

A rule's pattern is a tensor name of the folder in which `{b}` is a layer, `{e}` an expert and `{w}`
`weight` or `bias`. Its targets are GGUF names with the same placeholders.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from oxillama.errors import ConvertError

if TYPE_CHECKING:
    from oxillama.convert.folder import ModelFolder

_MISSING = object()
_MOST_LAYERS = 1 << 16
# what folders have called the base of a rotation, that of windowed layers, and the share of a head
BASES = (
    "global_rope_theta",
    "rope_global_theta",
    "rope_theta_global",
    "rotary_emb_base",
    "rope_theta",
)
LOCAL_BASES = (
    *("local_rope_theta", "rope_local_theta", "rope_theta_local", "swa_rope_theta"),
    "rope_local_base_freq",
)
SHARES = ("rope_pct", "rope_percent", "partial_rotary_factor")
# what a list says of each layer; a misspelt one would be taken as any other kind
_KINDS = {
    "layer_types": frozenset(
        ("attention", "full_attention", "sliding_attention", "chunked_attention")
        + ("linear_attention", "mamba", "conv", "indexed_attention", "sparse_attention")
        + ("deepseek_sparse_attention", "compressed_sparse_attention")
        + ("heavily_compressed_attention", "minimax_m3_sparse")
    ),
    "mlp_layer_types": frozenset(("dense", "sparse", "moe", "hash_moe")),
}
# of a rotation
_NUMBERS = (
    *("rope_theta", "partial_rotary_factor", "factor", "original_max_position_embeddings"),
    *("low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow", "attention_factor"),
    *("mscale", "mscale_all_dim", "alpha"),
)


class Hyper:
    """The values of a config.json, read under any of the names they have had."""

    def __init__(
        self,
        config: Mapping[str, Any],
        label: str,
        folder: ModelFolder | None = None,
        layer: int | None = None,
        further: int = 0,
        read: set[str] | None = None,
    ) -> None:
        self.config = config
        self.label = label
        self.folder = folder  # None where there is a configuration alone
        self.layer = layer  # of the tensor that a rule changes
        self.further = further  # layers of the file that predict further tokens
        self.read: set[str] = set() if read is None else read  # the keys asked for so far

    def at(self, layer: int | None) -> Hyper:
        """The same values, for a tensor of this layer."""
        return type(self)(self.config, self.label, self.folder, layer, self.further, self.read)

    def but(self, *names: str, **more: Any) -> Hyper:
        """The same without some values, or with others."""
        config = {name: value for name, value in self.config.items() if name not in names}
        config |= more
        return type(self)(config, self.label, self.folder, self.layer, self.further, self.read)

    def get(self, *names: str, default: Any = None) -> Any:
        """The first of the names that is there and not null."""
        self.read.update(names)
        for name in names:
            value = self.config.get(name)
            if value is not None:
                return value
        return default

    def _typed(self, kind: str, names: Sequence[str], default: Any, accept: Callable) -> Any:
        self.read.update(names)
        name = next((one for one in names if self.config.get(one) is not None), None)
        if name is None:
            if default is _MISSING:
                raise ConvertError(f"{self.label}: {names[0]} is missing, wanted {kind}")
            return default
        value = self.config[name]
        if isinstance(value, bool) or not accept(value):
            raise ConvertError(f"{self.label}: {name}: found {value!r:.80}, wanted {kind}")
        return value

    def integer(self, *names: str, default: Any = _MISSING) -> int:
        """An integer of at least 0."""
        accept = lambda v: isinstance(v, int) and 0 <= v < 1 << 31  # noqa: E731
        return self._typed("an integer from 0", names, default, accept)

    def number(self, *names: str, default: Any = _MISSING) -> float:
        """A finite number."""
        accept = lambda v: isinstance(v, (int, float)) and abs(v) < 3e38  # noqa: E731
        value = self._typed("a finite number", names, default, accept)
        return value if value is default else float(value)

    def flag(self, name: str, *, default: bool = False) -> bool:
        """A boolean."""
        self.read.add(name)
        value = self.config.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise ConvertError(f"{self.label}: {name}: found {value!r:.80}, wanted true or false")
        return value

    def strings(self, name: str, count: int, most: int = 0) -> list[str] | None:
        """A list of `count` strings, or of as many as there are up to `most`; None where the key is
        missing. Kinds of layers must be known ones.
        """
        self.read.add(name)
        value = self.config.get(name)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            raise ConvertError(f"{self.label}: {name}: found {value!r:.80}, wanted a list of names")
        if len(value) < count:
            raise ConvertError(f"{self.label}: {name}: {len(value)} of them for {count} layers")
        kept = value[: max(count, most)]
        known = _KINDS.get(name, kept)
        for one in kept:
            if one not in known:
                raise ConvertError(
                    f"{self.label}: {name}: found {one!r:.80}, wanted one of "
                    f"{', '.join(sorted(known))}"
                )
        return kept

    def must_be(self, name: str, *wanted: Any) -> None:
        """ConvertError where a key is there with another value: the GGUF meaning has no other."""
        self.read.add(name)
        value = self.config.get(name)
        if value is not None and value not in wanted:
            raise ConvertError(
                f"{self.label}: {name}: found {value!r:.80}, wanted "
                f"{' or '.join(map(repr, wanted))}"
            )

    @property
    def layers(self) -> int:
        """The layers of the model; of a decoder behind an encoder those of the deeper one."""
        kinds = self.config.get("layers_block_type")
        if self.config.get("num_hidden_layers") is None and isinstance(kinds, list):
            return len(kinds)
        names = ("n_layers", "num_hidden_layers", "n_layer", "num_layers", "num_transformer_layers")
        count = max(self.integer(*names), self.integer("num_decoder_layers", default=0))
        if count > _MOST_LAYERS:
            raise ConvertError(f"{self.label}: {count} layers, wanted at most {_MOST_LAYERS}")
        return count

    @property
    def blocks(self) -> int:
        """The layers of the file: the model's own, then those that predict further tokens."""
        return self.layers + self.further

    @property
    def hidden(self) -> int:
        return self.integer("hidden_size", "n_embd", "d_model", "model_dim", "dim")

    @property
    def heads(self) -> int:
        return self.integer("num_attention_heads", "n_head", "n_heads")

    @property
    def kv_heads(self) -> int:
        return self.integer("num_key_value_heads", "n_kv_heads", "num_kv_heads", default=self.heads)

    @property
    def head_dim(self) -> int:
        return self.integer("head_dim", default=None) or self.hidden // self.heads

    def rope(self, kind: str = "full_attention") -> dict[str, Any]:
        """The rotation of one kind of layer, in the words of transformers 5: rope_type, rope_theta,
        factor, partial_rotary_factor, ... Older folders say the same in several keys.
        """
        found: dict[str, Any] = {}
        for names in (BASES, SHARES):
            value = self.get(*names)
            if value is not None:
                if not isinstance(value, list):  # a base for each layer
                    self.number(*names)
                found[names[-1]] = value
        others: dict[str, Any] = {}
        for name in ("rope_scaling", "rope_parameters"):
            value = self.config.get(name)
            if value is None or value is False:  # folders of RND1 write False for none
                value = {}
            if isinstance(value, dict) and kind in value:
                name, value = f"{name}: {kind}", value[kind]
            if not isinstance(value, dict):
                raise ConvertError(f"{self.label}: {name}: found {value!r:.80}, wanted an object")
            if any(isinstance(one, dict) for one in value.values()):
                continue
            for key in _NUMBERS:
                Hyper(value, f"{self.label}: {name}").number(key, default=None)
            self._check_alike(name, value, others)
            others = value
            found.update(value)
        found.setdefault("rope_type", found.get("type", "default"))
        name = "original_max_position_embeddings"
        if found["rope_type"] in ("yarn", "longrope", "llama3") and self.get(name) is not None:
            found[name] = self.integer(name)  # as transformers: it rules over that of the rotation
        return found

    def _check_alike(self, name: str, value: dict[str, Any], others: dict[str, Any]) -> None:
        """ConvertError where both objects of a rotation are there and say different things: of
        these transformers takes the older one alone.
        """
        if not value or not others:
            return
        one, other = (
            {"rope_type": each.get("type", "default"), **each} for each in (value, others)
        )
        for key in ("rope_type", *sorted((one.keys() | other.keys()) - {"type", "rope_type"})):
            # what one of them does not say may stand beside both
            new, old = (each.get(key, self.config.get(key)) for each in (one, other))
            if new != old:
                raise ConvertError(
                    f"{self.label}: {name}: {key}: found {new!r:.80} beside {old!r:.80} in "
                    "rope_scaling, wanted one of these objects"
                )


class Keys:
    """The keys of a GGUF file in the making, those of the architecture under its name."""

    def __init__(self, arch: str) -> None:
        self.arch = arch
        self.found: dict[str, tuple[Any, str]] = {}

    def put(self, name: str, value: Any, kind: str) -> None:
        self.found[f"{self.arch}.{name}"] = value, kind

    def u32(self, name: str, value: int) -> None:
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 32:
            raise ConvertError(f"{self.arch}.{name}: found {value!r:.80}, wanted a uint32")
        self.put(name, value, "uint32")

    def f32(self, name: str, value: float) -> None:
        with np.errstate(over="ignore"):
            rounded = np.float32(value)
        if not np.isfinite(rounded):
            raise ConvertError(f"{self.arch}.{name}: found {value}, wanted a finite float32")
        self.put(name, float(rounded), "float32")

    def flag(self, name: str, value: bool) -> None:
        self.put(name, bool(value), "bool")

    def text(self, name: str, value: str) -> None:
        if not isinstance(value, str):
            raise ConvertError(f"{self.arch}.{name}: found {value!r:.80}, wanted a text")
        self.put(name, value, "string")

    def integers(self, name: str, values: Sequence[int]) -> None:
        self.put(name, [int(one) for one in values], "array[int32]")

    def flags(self, name: str, values: Sequence[bool]) -> None:
        self.put(name, [bool(one) for one in values], "array[bool]")

    def floats(self, name: str, values: Sequence[float]) -> None:
        self.put(name, [float(np.float32(one)) for one in values], "array[float32]")

    def texts(self, name: str, values: Sequence[str]) -> None:
        self.put(name, list(values), "array[string]")


Change = Callable[[np.ndarray, "Hyper"], Any]


@dataclass(frozen=True, slots=True)
class Rule:
    """Where a tensor goes: GGUF names, and how its numbers are rearranged on the way.

    change: array -> array, or as many arrays as there are targets. It must not compute where the
    numbers may be bfloat16 bits; `values` says that it does, and it is then given float32.
    part: the place of this tensor among those that are stacked into one target. joined: those of
    number `{e}` are rows of one matrix, one after the other, and not stacked. integers: it holds
    integers, which become int32.
    """

    targets: tuple[str, ...]
    change: Change | None = None
    values: bool = False
    part: int | None = None
    joined: bool = False
    integers: bool = False


def compiled(pattern: str) -> re.Pattern[str]:
    """A rule's pattern as a regular expression with groups b, e and w."""
    text = re.escape(pattern).replace(r"\{b\}", r"(?P<b>[0-9]{1,9})")
    text = text.replace(r"\{e\}", r"(?P<e>[0-9]{1,9})").replace(r"\{w\}", r"(?P<w>weight|bias)")
    return re.compile(text + r"\Z")


@dataclass(frozen=True, slots=True)
class Mtp:
    """How folders of a family hold the layers that predict further tokens (`mtp_layers`)."""

    # a tensor's name -> its names as that of layers behind the model's own, none if it is of none
    place: Callable[[str, Hyper], tuple[str, ...]]
    # of such layers alone, where the family's are not theirs
    rules: Mapping[str, str | Rule]
    # the value of config.json that counts them; None, or uncounted and 0: the tensors tell
    counted: str | None = "num_nextn_predict_layers"
    uncounted: bool = False
    asked: bool = False  # they are kept only on request


@dataclass(frozen=True, slots=True)
class Family:
    """One family of models: its GGUF architecture, the names of its tensors and its keys."""

    arch: str
    rules: Mapping[str, str | Rule]
    keys: Callable[[Hyper, Keys], None]
    # further tensors that the file needs: name -> float32 array
    extra: Callable[[Hyper], dict[str, np.ndarray]] = lambda hyper: {}
    # names that carry nothing the model needs (buffers that transformers saved in older versions)
    dropped: tuple[str, ...] = ()
    # what its files say of a vocabulary that folders hold alike: pieces of a unigram model ("t5" in
    # the file; else they are merged by score), Gemma 4's merges over SentencePiece's alphabet,
    # RWKV's, Qwen's file of byte strings, or PLaMo's list of tokens
    vocabulary: Literal["unigram", "gemma4", "rwkv", "qwen", "plamo"] | None = None
    add_space_prefix: bool | None = None
    # add_space_prefix is what tokenizer_config.json says under add_prefix_space
    prefix_setting: bool = False
    # special tokens by key (`eot`, or `eot?` where the folder names none), and switches (`add_bos`)
    special: Callable[[Hyper, dict[str, int]], dict[str, Any]] = lambda hyper, ids: {}
    # tensors of one number (a layer) that become a key: name -> the whole key
    gathered: Mapping[str, str] = field(default_factory=dict)
    # MXFP4 tensors, held as NAME_blocks and NAME_scales: NAME -> one target, or gate and up
    packed: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    # beginnings of the names of other parts of the model, beside those that all classes name so
    beside: tuple[str, ...] = ()
    # beginnings of names that are taken off before the rules are looked up
    prefixes: tuple[str, ...] = ()
    # another family for some configurations of the same class, and the architectures of those
    variant: Callable[[Hyper], Family | None] = lambda hyper: None
    others: tuple[str, ...] = ()
    # layers of the file that a folder holds tensors of: all that it counts, but of what runs often
    held: Callable[[Hyper], int] = lambda hyper: hyper.layers
    # values of config.json that its files mean without a key, other than those of `accounts`;
    # layer_types: every how many layers one is global, and the first of those, () for any order
    meant: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    # the layers that predict further tokens, None where files have no place for them
    mtp: Mtp | None = None
    patterns: list[tuple[re.Pattern[str], Rule]] = field(default_factory=list)

    def __post_init__(self) -> None:
        # a name in full goes before one with a place for weight or bias
        for pattern, rule in sorted(self.rules.items(), key=lambda one: "{w}" in one[0]):
            held = rule if isinstance(rule, Rule) else Rule((rule,))
            self.patterns.append((compiled(pattern), held))

    def rule_of(self, name: str) -> tuple[Rule, dict[str, str]] | None:
        """The rule of a tensor's name with what stands in its places, None where there is none."""
        for pattern, rule in self.patterns:
            if match := pattern.match(name):
                return rule, match.groupdict()
        return None

    def plain(self, name: str) -> str:
        """A folder's name of a tensor as the rules have it: classes around a language model and
        the family's own prefix others.
        """
        for prefix, plain in _WRAPPED:
            name = plain + name.removeprefix(prefix) if name.startswith(prefix) else name
        for prefix in self.prefixes:
            name = name.removeprefix(prefix)
        return name


FAMILIES: dict[str, Family] = {}
_WRAPPED = (
    ("thinker.", ""),
    ("model.language_model.", "model."),
    ("model.text_model.", "model."),
    ("language_model.", ""),
    ("text_decoder.", ""),
)


def family(*classes: str, arch: str, rules: Mapping[str, str | Rule], **more: Any) -> Callable:
    """Register the decorated keys function as the family of the named transformers classes."""

    def register(keys: Callable[[Hyper, Keys], None]) -> Callable[[Hyper, Keys], None]:
        made = Family(arch, rules, keys, **more)
        for name in classes:
            FAMILIES[name] = made
        return keys

    return register
