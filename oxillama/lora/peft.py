"""Reads an adapter folder as written by PEFT: adapter_config.json and adapter_model.safetensors.

Names and row orders are those of a Hugging Face model; the families of `oxillama.convert` map them
to a GGUF file. Factor A is unchanged; the rows of B are rearranged like those of the weight. A
configuration with more than plain LoRA is refused by name.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from oxillama.convert import families as _families  # noqa: F401  (importing it registers them)
from oxillama.convert.family import FAMILIES, Change, Family, Hyper, Rule
from oxillama.convert.folder import read_whole
from oxillama.convert.safetensors import StoredTensor, check_unchanged, read_safetensors
from oxillama.convert.shapes import transposed
from oxillama.convert.tensor_plan import FLOATS
from oxillama.errors import ConvertError, GrammarError, LoraError, QuantError
from oxillama.gguf import GgufReader
from oxillama.grammar.python_regex import python_pattern
from oxillama.lora.file import (
    CONFIG,
    EMBEDDING,
    HEAD,
    PICKLED,
    WEIGHTS,
    LoraFile,
    checked_pairs,
    fits_float32,
)
from oxillama.quant import dequantize, quantize

_PREFIX = "base_model.model."
_NAME = re.compile(
    r"(?P<module>.+)\.(?P<half>lora_A|lora_B|lora_embedding_A|lora_embedding_B)(?:\.weight)?\Z"
)
# the base's own weight beside an adapter of it, as save_embedding_layers leaves it there
_BASE = re.compile(rf"{re.escape(_PREFIX)}(?P<module>.+)\.base_layer\.weight\Z")
# values that change nothing; any other value of these is refused
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "bias": ("none",),
    "use_dora": (False,),
    "modules_to_save": (None, []),
    "lora_bias": (False,),
    "layer_replication": (None, []),
    "megatron_config": (None,),
    "trainable_token_indices": (None, [], {}),
    "alora_invocation_tokens": (None, []),
    "target_parameters": (None, []),
    "use_qalora": (False,),
    "arrow_config": (None,),
    "lora_ga_config": (None,),
    "use_bdlora": (None, False),
    "velora_config": (None,),
    "monteclora_config": (None,),
    "ensure_weight_tying": (False,),
    # others (pissa, olora, corda, loftq) change the base's weights, and their factors are to be
    # added to the changed ones
    "init_lora_weights": (True, False, None, "gaussian", "eva", "orthogonal"),
}
# of training, or found in the tensors themselves
_INERT = frozenset(
    [
        "auto_mapping",
        "base_model_name_or_path",
        "corda_config",
        "eva_config",
        "fan_in_fan_out",
        "inference_mode",
        "loftq_config",
        "lora_dropout",
        "megatron_core",
        "peft_version",
        "qalora_group_size",
        "revision",
        "runtime_config",
        "task_type",
    ]
)
_READ = frozenset(
    [
        "peft_type",
        "r",
        "lora_alpha",
        "use_rslora",
        "rank_pattern",
        "alpha_pattern",
        "target_modules",
        "exclude_modules",
        "layers_to_transform",
        "layers_pattern",
    ]
)
_COMPUTED = (
    "a GGUF file stores values computed from this weight, to which low-rank factors cannot be added"
)
# how much further than the best blocks those of another program may be from the weights they are of
_WORST_BLOCKS = 2.0
_WANTED_UNSAVED = "wanted it left out (save_pretrained with save_embedding_layers=False)"
_WANTED_MODULES = "wanted a list of names or a pattern"


def read_peft_lora(folder: Path, base: GgufReader) -> LoraFile:
    """The adapter of a folder for the model of a GGUF file; LoraError if it is malformed or cannot
    be honoured.
    """
    label = str(folder)
    config = _config(folder)
    arch = str(base.metadata.get("general.architecture"))
    pickled = folder / PICKLED
    if pickled.exists() and not (folder / WEIGHTS).exists():
        raise LoraError(
            f"{pickled}: pickled weights are not read, wanted {WEIGHTS} "
            "(save_pretrained with safe_serialization=True)"
        )
    try:
        stored = read_safetensors(folder / WEIGHTS)
    except ConvertError as error:
        raise LoraError(str(error)) from error
    bases = {match["module"]: name for name in stored if (match := _BASE.match(name))}
    factors = {name: each for name, each in stored.items() if name not in bases.values()}
    modules = _modules(factors, label)
    rules = _rules_of(modules, arch, config, label)
    for module, name in bases.items():
        _check_base(stored[name], rules.get(module), base, f"{label}: {name}")
    tensors: dict[str, np.ndarray] = {}
    scaled: dict[str, float] = {}
    experts: dict[str, dict[int, tuple[np.ndarray, np.ndarray]]] = {}
    made_by: dict[tuple[str, str | None], str] = {}  # the module of a tensor, or of an expert of it
    ranks, alphas = (_patterns(config, name, label) for name in ("rank_pattern", "alpha_pattern"))
    targets = _Targets(config, label)
    for module, (a, b, embedding) in modules.items():
        rule, places = rules[module]
        targets.check(module, other=embedding or rule.targets[0].startswith("output."))
        scale = _scale(config, ranks, alphas, module, a.shape[0], label)
        if a.shape[0] != b.shape[1]:
            raise LoraError(
                f"{label}: {module}: found A {a.shape} and B {b.shape}, wanted one rank"
            )
        if embedding:
            if rule.targets != (EMBEDDING,):
                raise LoraError(
                    f"{label}: {module}: is an embedding, wanted that of tokens or a matrix of a "
                    "product"
                )
            if rule.values:
                raise LoraError(f"{label}: {module}: {_COMPUTED}")
            a, parts = np.ascontiguousarray(a.T), [b]
        else:
            hyper = _hyper(base, arch, places.get("b"), label)
            a, parts = _rearranged(a, b, rule, hyper, f"{label}: {module}")
        for target, part in zip(rule.targets, parts, strict=True):
            name = target.format(**{k: v for k, v in places.items() if v is not None})
            other = made_by.setdefault((name, places.get("e")), module)
            if other != module:
                raise LoraError(f"{label}: {module} and {other} are both {name}")
            if scaled.setdefault(name, scale) != scale:
                raise LoraError(f"{label}: {module}: scale {scale}, that of other experts differs")
            if places.get("e") is not None:
                experts.setdefault(name, {})[int(places["e"])] = (a, part)
            else:
                tensors[name + ".lora_a"], tensors[name + ".lora_b"] = a, part
    for name, each in experts.items():
        if sorted(each) != list(range(len(each))) or len({a.shape for a, _ in each.values()}) > 1:
            raise LoraError(
                f"{label}: {name}: factors of experts {sorted(each)}, wanted all of one rank"
            )
        tensors[name + ".lora_a"] = np.stack([each[e][0] for e in sorted(each)])
        tensors[name + ".lora_b"] = np.stack([each[e][1] for e in sorted(each)])
    pairs = checked_pairs(tensors, label)
    # in PEFT an adapter of the embedding is not one of a head that is tied to it
    lookups_only = EMBEDDING in pairs and HEAD not in base.tensors
    made = LoraFile(label, arch, 0.0, pairs, scaled, lookups_only)
    try:
        check_unchanged(stored.values())
    except ConvertError as error:
        raise LoraError(str(error)) from error
    return made


def _rules_of(
    modules: Mapping[str, Any], arch: str, config: Mapping[str, Any], label: str
) -> dict[str, Any]:
    """(rule, places) of each module by the family whose folders have all of them."""
    found = None
    families = _families_of(arch, config)
    for made in families:
        rules = {module: _rule_of(made, module) for module in modules}
        here = {module: rule for module, rule in rules.items() if rule}
        if len(here) == len(rules):
            if found is not None and _as_stated(here) != _as_stated(found):
                raise LoraError(
                    f"{label}: several families of {arch} files name these tensors, wanted "
                    f"base_model_class in auto_mapping"
                )
            found = here
    if found is None:
        unknown = next(
            (m for m in modules if not any(_rule_of(f, m) for f in families)),
            next(iter(modules)),
        )
        raise LoraError(f"{label}: {unknown}: no tensor of a {arch} file is made of this module")
    return found


def _rule_of(family: Family, module: str) -> tuple[Rule, dict[str, str]] | None:
    return family.rule_of(family.plain(module + ".weight"))


def _as_stated(rules: Mapping[str, Any]) -> dict[str, Any]:
    return {name: (rule.targets, rule.change) for name, (rule, _) in rules.items()}


def _config(folder: Path) -> dict[str, Any]:
    path = folder / CONFIG
    try:
        held = read_whole(path)
    except ConvertError as error:
        raise LoraError(str(error)) from error
    if held is None:
        raise LoraError(f"{path}: missing, wanted a PEFT adapter folder")
    try:
        config = json.loads(held.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise LoraError(f"{path}: is not JSON: {error}") from None
    if not isinstance(config, dict) or config.get("peft_type") != "LORA":
        kind = config.get("peft_type") if isinstance(config, dict) else config
        raise LoraError(f"{path}: peft_type: found {kind!r:.80}, wanted 'LORA'")
    for name, value in config.items():
        if name in _NEUTRAL:
            if value not in _NEUTRAL[name]:
                raise LoraError(f"{path}: {name}: found {value!r:.80}, which cannot be done here")
        elif name not in _INERT and name not in _READ and value not in (None, False, {}, []):
            raise LoraError(f"{path}: {name}: found {value!r:.80}, an option that is not known")
    return config


def _modules(
    stored: Mapping[str, StoredTensor], label: str
) -> dict[str, tuple[np.ndarray, np.ndarray, bool]]:
    """(A, B, whether of an embedding) of each module by its name in the model."""
    halves: dict[str, dict[str, np.ndarray]] = {}
    for name, tensor in stored.items():
        match = _NAME.match(name.removeprefix(_PREFIX))
        if match is None or not name.startswith(_PREFIX):
            raise LoraError(f"{label}: {name}: found a tensor that is not a factor of a module")
        if tensor.dtype not in ("F64", "F32", "F16", "BF16") or tensor.data.ndim != 2:
            raise LoraError(
                f"{label}: {name}: found {tensor.dtype} {tensor.data.shape}, wanted floats of 2 "
                "dimensions"
            )
        if 0 in tensor.data.shape:
            raise LoraError(f"{label}: {name}: found shape {tensor.data.shape}, wanted numbers")
        halves.setdefault(match["module"], {})[match["half"]] = tensor.floats()
    for module, found in halves.items():
        if set(found) not in ({"lora_A", "lora_B"}, {"lora_embedding_A", "lora_embedding_B"}):
            raise LoraError(
                f"{label}: {module}: has only {', '.join(sorted(found))}, wanted A and B"
            )
    if not halves:
        raise LoraError(f"{label}: found no factors, wanted at least one pair")
    made = {}
    for module, found in halves.items():
        a, b = sorted(found)
        made[module] = (found[a], found[b], "embedding" in a)
    return made


def _check_base(stored: StoredTensor, rule: Any, base: GgufReader, label: str) -> None:
    """LoraError unless a weight that an adapter brings is the one that the model's file has. Blocks
    are compared by their error, since programs choose them differently.
    """
    if rule is None:
        raise LoraError(f"{label}: is the weight of a module without factors, wanted factors alone")
    how, places = rule
    (target, *others) = (one.format(**places) for one in how.targets)
    if target == HEAD and target not in base.tensors:
        target = EMBEDDING  # it is tied to it
    info = base.tensors.get(target)
    if others or how.change is not None or how.values or info is None:
        raise LoraError(f"{label}: cannot be held against the model's file, {_WANTED_UNSAVED}")
    kind, data = info.type_name, base.data(target)
    if stored.dtype in ("F64", "F32", "F16", "BF16") and stored.shape == tuple(info.shape):
        if kind in FLOATS:
            if stored.as_type(kind).tobytes() == data.tobytes():
                return
        else:
            with contextlib.suppress(QuantError):  # numbers that the type does not hold
                wanted = stored.floats()
                blocks = data.reshape(len(wanted), -1)
                least = _distance(dequantize(quantize(wanted, kind), kind), wanted)
                if _distance(dequantize(blocks, kind), wanted) <= _WORST_BLOCKS * least:
                    return
    raise LoraError(
        f"{label}: found {stored.dtype} {stored.shape} that is not {target} of the model's file "
        f"({kind} {tuple(info.shape)}), {_WANTED_UNSAVED}"
    )


def _distance(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(a - b), dtype=np.float64)))


def _families_of(arch: str, config: Mapping[str, Any]) -> list[Family]:
    mapping = config.get("auto_mapping")
    named = mapping.get("base_model_class") if isinstance(mapping, dict) else None
    if isinstance(named, str) and named in FAMILIES and FAMILIES[named].arch == arch:
        return [FAMILIES[named]]
    return [*{id(f): f for f in FAMILIES.values() if f.arch == arch}.values()]


class _FileHyper(Hyper):
    """What a model's file says of the values of a config.json; one that it does not say is an
    error and not a default.
    """

    def _said(self, *names: str) -> None:
        if not any(name in self.config for name in names):
            raise ConvertError(
                f"{self.label}: {names[0]} is missing, wanted it in the model's file"
            )

    def get(self, *names: str, default: Any = None) -> Any:
        self._said(*names)
        return super().get(*names, default=default)

    def _typed(self, kind: str, names: Sequence[str], default: Any, accept: Callable) -> Any:
        self._said(*names)
        return super()._typed(kind, names, default, accept)

    def flag(self, name: str, *, default: bool = False) -> bool:
        self._said(name)
        return super().flag(name, default=default)


def _hyper(base: GgufReader, arch: str, layer: str | None, label: str) -> Hyper:
    """The configuration values that conversion rules need, from the keys of the GGUF file. layer:
    the number of the one that a tensor is of, for keys with a value for each.
    """

    def value(key: str) -> Any:
        found = base.metadata.get(f"{arch}.{key}")
        if isinstance(found, np.ndarray):
            at = len(found) if layer is None else int(layer)
            return int(found[at]) if at < len(found) else None
        return found

    heads, keys = value("attention.head_count"), value("attention.head_count_kv")
    keys = heads if keys is None else keys
    config = {
        "num_attention_heads": heads,
        "num_key_value_heads": keys,
        "head_dim": value("attention.key_length"),
        "hidden_size": value("embedding_length"),
        # Falcon, whose two kinds of layers have the same rows for a number of keys
        "num_kv_heads": keys,
        "multi_query": None,
        "new_decoder_architecture": None,
        # Bamba
        "attn_rotary_emb": value("rope.dimension_count"),
    }
    values = value("ssm.time_step_rank")
    if values and value("ssm.group_count"):  # gated delta rules
        config |= {
            "linear_num_key_heads": value("ssm.group_count"),
            "linear_num_value_heads": values,
            "linear_key_head_dim": value("ssm.state_size"),
            "linear_value_head_dim": value("ssm.inner_size") // values,
        }
    return _FileHyper(config, label)


def _patterns(
    config: Mapping[str, Any], name: str, label: str
) -> list[tuple[Callable[[str], bool], Any]]:
    """Patterns of modules with their values, in order. A pattern matches the end of a name, as in
    PEFT.
    """
    patterns = {} if config.get(name) is None else config[name]
    if not isinstance(patterns, dict):
        raise LoraError(
            f"{label}: {name}: found {patterns!r:.80}, wanted an object of patterns and values"
        )
    return [
        (_pattern(rf"(?:.*\.)?(?:{pattern})$", name, label), value)
        for pattern, value in patterns.items()
    ]


def _pattern(text: str, name: str, label: str) -> Callable[[str], bool]:
    try:
        return python_pattern(text)
    except GrammarError as error:
        raise LoraError(
            f"{label}: {name}: found what is no regular expression, or none that is read: {error}"
        ) from None


class _Targets:
    """Which modules a configuration gives an adapter. PEFT leaves out the factors of all others
    without a word, so that a folder with such factors is not what its writer had. A configuration
    without `target_modules`, which PEFT never writes, means all that have factors.
    """

    def __init__(self, config: Mapping[str, Any], label: str) -> None:
        self.config, self.label = config, label
        self.excluded = self._named("exclude_modules") if config.get("exclude_modules") else None
        self.every_linear = False
        found = config.get("target_modules")
        if isinstance(found, str) and found.lower() == "all-linear":
            self.every_linear = True
        elif found is None:
            self.named = lambda module: True
        else:
            self.named = self._named("target_modules")
        self.layers = self._layers()

    def check(self, module: str, *, other: bool) -> None:
        """LoraError unless the module is one of them. other: it is an embedding or the head, which
        are not among all linear layers.
        """
        if self.excluded is not None and self.excluded(module):
            self._refuse(module, "exclude_modules")
        if not (not other if self.every_linear else self.named(module)):
            self._refuse(module, "target_modules")
        listed = self.config.get("target_modules")
        if self.layers is not None and not (isinstance(listed, list) and module in listed):
            layer = self._layer_of(module)
            if layer is None or layer not in self.layers:
                self._refuse(module, "layers_to_transform")

    def _refuse(self, module: str, name: str) -> None:
        raise LoraError(
            f"{self.label}: {module}: has factors, wanted none: {CONFIG} leaves this module out by "
            f"{name} {self.config[name]!r:.80}"
        )

    def _named(self, name: str) -> Callable[[str], bool]:
        """Whether a value names a module: the ends of names, or a pattern of whole names."""
        value = self.config.get(name)
        if isinstance(value, str):
            return _pattern(value, name, self.label)
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            raise LoraError(f"{self.label}: {name}: found {value!r:.80}, {_WANTED_MODULES}")
        names, ends = frozenset(value), tuple(f".{one}" for one in value)
        return lambda module: module in names or module.endswith(ends)

    def _layers(self) -> frozenset[int] | None:
        """The layers whose modules are meant, None for all."""
        value = self.config.get("layers_to_transform")
        if value is None or value == []:
            if self.config.get("layers_pattern"):
                raise LoraError(
                    f"{self.label}: layers_pattern: found {self.config['layers_pattern']!r:.80} "
                    "without layers_to_transform, wanted both or none"
                )
            return None
        layers = value if isinstance(value, list) else [value]
        if any(isinstance(one, bool) or not isinstance(one, int) for one in layers):
            raise LoraError(
                f"{self.label}: layers_to_transform: found {value!r:.80}, wanted numbers of layers"
            )
        if isinstance(self.config.get("target_modules"), str):
            raise LoraError(
                f"{self.label}: layers_to_transform: found {value!r:.80} beside target_modules "
                f"{self.config['target_modules']!r:.80}, wanted a list of names there"
            )
        return frozenset(layers)

    def _layer_of(self, module: str) -> int | None:
        """The number of a module's layer: the first one behind a name, or behind one of those of
        `layers_pattern`.
        """
        found = self.config.get("layers_pattern") or []
        names = [found] if isinstance(found, str) else found
        if not isinstance(names, list) or not all(
            isinstance(one, str) and re.fullmatch(r"\w+", one) for one in names
        ):
            raise LoraError(
                f"{self.label}: layers_pattern: found {found!r:.80}, wanted names of lists of "
                "layers"
            )
        # without names some list within a module, as PEFT has it
        ways = [rf"(?:^|.*?\.){name}\.(\d+)\." for name in names] or [r".*?\.[^.]*\.(\d+)\."]
        match = next(filter(None, (re.match(way, module) for way in ways)), None)
        return None if match is None else int(match[1])


def _valued(
    patterns: Sequence[tuple[Callable[[str], bool], Any]], module: str, default: Any
) -> Any:
    """The value of the first pattern that matches."""
    return next((value for matches, value in patterns if matches(module)), default)


def _scale(
    config: Mapping[str, Any],
    ranks: Sequence[tuple[Callable[[str], bool], Any]],
    alphas: Sequence[tuple[Callable[[str], bool], Any]],
    module: str,
    rank: int,
    label: str,
) -> float:
    wanted = _valued(ranks, module, config.get("r"))
    alpha = _valued(alphas, module, config.get("lora_alpha"))
    if wanted != rank:
        raise LoraError(f"{label}: {module}: factors of rank {rank}, {CONFIG} says {wanted!r:.40}")
    if isinstance(alpha, bool) or not isinstance(alpha, (int, float)) or not fits_float32(alpha):
        raise LoraError(
            f"{label}: {module}: lora_alpha: found {alpha!r:.40}, wanted a finite number"
        )
    stable = config.get("use_rslora", False)
    if not isinstance(stable, bool):
        raise LoraError(f"{label}: use_rslora: found {stable!r:.40}, wanted true or false")
    return alpha / (math.sqrt(rank) if stable else rank)


def _rearranged(
    a: np.ndarray, b: np.ndarray, rule: Rule, hyper: Hyper, label: str
) -> tuple[np.ndarray, list[np.ndarray]]:
    """A, and the rows of B for each of the rule's targets; or, where a file rearranges columns, A
    with those and B.
    """
    # of GPT-2's Conv1D, held transposed, PEFT's factors are those of the product all the same
    if rule.change is None or rule.change is transposed:
        return a, [b]
    if rule.values:
        raise LoraError(f"{label}: {_COMPUTED}")
    change, told = rule.change, f"{label}: B of {b.shape}"
    try:
        if _moves(change, len(b), 0, hyper):
            return a, [np.ascontiguousarray(part) for part in _parts(change(b, hyper))]
    except (ConvertError, ValueError, IndexError, ZeroDivisionError) as error:
        problem: Exception | None = error
    else:
        problem = None
    if not isinstance(problem, ConvertError):
        with contextlib.suppress(ConvertError, ValueError, IndexError, ZeroDivisionError):
            if _moves(change, a.shape[1], 1, hyper):
                (moved,) = _parts(change(a, hyper))
                return np.ascontiguousarray(moved), [b]
    if problem is not None:
        raise LoraError(f"{told}: {problem}") from problem
    raise LoraError(
        f"{label}: a GGUF file rearranges more than the rows or the columns of this weight, "
        "which low-rank factors cannot follow"
    )


def _moves(change: Change, count: int, axis: int, hyper: Hyper) -> bool:
    """Whether a change of a weight moves rows (axis 0; or columns, 1) as wholes, and nothing
    else.
    """
    numbers = np.arange(count, dtype=np.float32)
    probes = _parts(change(np.stack([numbers, numbers + np.float32(0.5)], axis=1 - axis), hyper))
    return all(
        probe.ndim == 2
        and probe.shape[1 - axis] == 2
        and (np.diff(probe, axis=1 - axis) == 0.5).all()
        for probe in probes
    )


def _parts(made: Any) -> list[np.ndarray]:
    return list(made) if isinstance(made, tuple) else [made]
