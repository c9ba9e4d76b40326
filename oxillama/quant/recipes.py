"""Recipes: which format each tensor of a model gets when a file is quantised as `Q4_K_M`, `IQ3_XS`
and so on.

A recipe has a base format and rules for the roles that suffer most from few bits: the value
projection of attention, the down projection of the feed-forward network, the attention output, the
embedding and the output matrix, above all in the first and last layers. `RECIPES` is the table of
recipes, and `choose` applies one to a tensor. The mixtures are those known by these names from
llama.cpp. If a row is not a whole number of blocks, `FALLBACKS` names the next larger format.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches

from oxillama.errors import QuantError
from oxillama.quant.rows import format_named


@dataclass(frozen=True, slots=True)
class TensorContext:
    """What the rules of a recipe ask about a tensor: its layer, the number of layers, query heads
    per key head, experts, and so on.

    Not every layer has every tensor, so the `layer` of attn_v, ffn_down, ffn_gate and ffn_up is the
    number of such tensors before it, in order of layers and then of names; the feed-forward tensors
    of a model with experts have the layer's own number, as have all other tensors.
    """

    layer: int
    layers: int  # of the model; for attn_v the number of such tensors
    before: int  # tensors of the same role before it, in models with experts too
    grouping: int  # of the first layer; 0 where that has no key heads
    experts: int
    has_imatrix: bool
    tied: bool  # the embedding is the output matrix too
    large: bool  # one of the models of 70 billion weights, see `tensor_contexts`
    arch: str = ""  # general.architecture


Condition = Callable[[TensorContext], bool]


@dataclass(frozen=True, slots=True)
class Rule:
    """Tensors of `role` ("any": all that reach the rule) get `format` where `when` holds; the first
    rule that fits decides.
    """

    role: str
    format: str
    when: Condition = lambda context: True


@dataclass(frozen=True, slots=True)
class Recipe:
    """`file_type` is the value of `general.file_type` for other programs; `base` is the format of
    tensors that no rule names.

    Both are None in `COPY`, which changes no tensor.
    """

    file_type: int | None
    base: str | None
    rules: tuple[Rule, ...] = ()
    output: str = "Q6_K"  # format of the output matrix, and of an embedding that is one
    embedding: str | None = None  # of any other embedding; None: as `base`
    large_values: str | None = "Q5_K"  # of the attn_v of a large model, in place of Q3_K and Q4_K


def _sensitive(context: TensorContext) -> bool:
    """The first and the last eighth of the layers, and every third between."""
    eighth = context.layers // 8
    return (
        context.layer < eighth
        or context.layer >= 7 * context.layers // 8
        or (context.layer - eighth) % 3 == 2
    )


def _first(part: int) -> Condition:
    return lambda context: context.layer < context.layers // part


def _first_counted(part: int) -> Condition:
    return lambda context: context.before < context.layers // part


def _below(layer: int) -> Condition:
    return lambda context: context.layer < layer


def _grouped(context: TensorContext) -> bool:
    """Few value heads serve many queries: their matrix is small, and each error in it counts
    often.
    """
    return context.grouping >= 4


def _grouped_or_experts(context: TensorContext) -> bool:
    return context.grouping >= 4 or context.experts >= 4


def _eight_experts(context: TensorContext) -> bool:
    return context.experts == 8


def _no_imatrix(context: TensorContext) -> bool:
    return not context.has_imatrix


def _both(one: Condition, other: Condition) -> Condition:
    return lambda context: one(context) and other(context)


# With eight experts attention is a small part of the file, so it may cost more bits.
_ATTENTION_OF_EXPERTS = (
    Rule("attn_v", "Q8_0", _eight_experts),
    Rule("attn_k", "Q8_0", _eight_experts),
)
_ATTENTION_OUT_OF_EXPERTS = (*_ATTENTION_OF_EXPERTS, Rule("attn_output", "Q5_K", _eight_experts))


def _tiny(
    file_type: int, base: str, better: str, embedding: str, attn_output: str | None
) -> Recipe:
    """Recipes of about two bits and less: `better` for value projections and for the down
    projections of the first layers.
    """
    rules: tuple[Rule, ...] = (
        Rule("attn_v", "Q4_K", _grouped_or_experts),
        Rule("attn_v", better),
        Rule("attn_k", "Q4_K", _eight_experts),
        Rule("ffn_down", better, _first_counted(8)),
        Rule("attn_output", "Q5_K", _eight_experts),
    )
    if attn_output is not None:
        rules += (Rule("attn_output", attn_output),)
    return Recipe(file_type, base, rules, output="Q5_K", embedding=embedding, large_values=None)


RECIPES: dict[str, Recipe] = {
    "F32": Recipe(0, "F32", output="F32"),
    "F16": Recipe(1, "F16", output="F16"),
    "BF16": Recipe(32, "BF16", output="BF16"),
    "Q4_0": Recipe(
        2,
        "Q4_0",
        (
            *_ATTENTION_OF_EXPERTS,
            Rule("ffn_down", "Q4_1", _both(_first(8), lambda context: context.has_imatrix)),
        ),
    ),
    "Q4_1": Recipe(3, "Q4_1", _ATTENTION_OF_EXPERTS),
    "Q5_0": Recipe(
        8,
        "Q5_0",
        (
            *_ATTENTION_OF_EXPERTS,
            Rule("ffn_down", "Q5_1", _both(_first(8), lambda context: context.has_imatrix)),
        ),
    ),
    "Q5_1": Recipe(9, "Q5_1", _ATTENTION_OF_EXPERTS),
    "Q8_0": Recipe(7, "Q8_0", output="Q8_0"),
    "Q2_K": Recipe(
        10,
        "Q2_K",
        (
            *_ATTENTION_OUT_OF_EXPERTS,
            Rule("attn_v", "Q4_K", _grouped),
            Rule("attn_v", "Q3_K"),
            Rule("ffn_down", "Q3_K"),
            Rule("attn_output", "Q3_K"),
        ),
    ),
    "Q2_K_S": Recipe(
        21,
        "Q2_K",
        (
            *_ATTENTION_OF_EXPERTS,
            Rule("attn_v", "Q4_K", _grouped),
            Rule("ffn_down", "Q4_K", _first(8)),
        ),
    ),
    "Q3_K_S": Recipe(11, "Q3_K", _ATTENTION_OUT_OF_EXPERTS),
    "Q3_K_M": Recipe(
        12,
        "Q3_K",
        (
            *_ATTENTION_OUT_OF_EXPERTS,
            Rule("attn_v", "Q5_K", _below(2)),
            Rule("attn_v", "Q4_K"),
            Rule("ffn_down", "Q5_K", _first(16)),
            Rule("ffn_down", "Q4_K"),
            Rule("attn_output", "Q4_K"),
        ),
    ),
    "Q3_K_L": Recipe(
        13,
        "Q3_K",
        (
            *_ATTENTION_OF_EXPERTS,
            Rule("attn_v", "Q5_K"),
            Rule("ffn_down", "Q5_K"),
            Rule("attn_output", "Q5_K", lambda context: not _eight_experts(context)),
        ),
    ),
    "Q4_K_S": Recipe(
        14,
        "Q4_K",
        (
            *_ATTENTION_OUT_OF_EXPERTS,
            Rule("attn_v", "Q5_K", _below(4)),
            Rule("ffn_down", "Q5_K", _first(8)),
        ),
    ),
    "Q4_K_M": Recipe(
        15,
        "Q4_K",
        (
            *_ATTENTION_OUT_OF_EXPERTS,
            Rule("attn_v", "Q6_K", _sensitive),
            Rule("ffn_down", "Q6_K", _sensitive),
        ),
    ),
    "Q5_K_S": Recipe(16, "Q5_K", _ATTENTION_OF_EXPERTS),
    "Q5_K_M": Recipe(
        17,
        "Q5_K",
        (
            *_ATTENTION_OF_EXPERTS,
            Rule("attn_v", "Q6_K", _sensitive),
            Rule("ffn_down", "Q6_K", _sensitive),
        ),
    ),
    "Q6_K": Recipe(18, "Q6_K", _ATTENTION_OF_EXPERTS),
    "IQ1_S": _tiny(24, "IQ1_S", "Q2_K", "Q2_K", "IQ2_XXS"),
    "IQ1_M": _tiny(31, "IQ1_M", "Q2_K", "Q2_K", "IQ2_XXS"),
    "IQ2_XXS": _tiny(19, "IQ2_XXS", "Q2_K", "Q2_K", None),
    "IQ2_XS": _tiny(20, "IQ2_XS", "Q2_K", "Q2_K", None),
    "IQ2_S": _tiny(28, "IQ2_XS", "IQ3_S", "IQ3_S", "IQ3_S"),
    "IQ2_M": _tiny(29, "IQ2_S", "IQ3_S", "IQ3_S", "IQ3_S"),
    "IQ3_XXS": Recipe(
        23,
        "IQ3_XXS",
        (
            *_ATTENTION_OUT_OF_EXPERTS,
            Rule("attn_v", "Q4_K", _grouped),
            Rule("attn_v", "IQ3_S", _no_imatrix),
            Rule("attn_k", "IQ2_S"),
            Rule("attn_q", "IQ2_S"),
            Rule("ffn_down", "Q4_K", _both(_no_imatrix, _first(8))),
            Rule("ffn_down", "Q3_K", _no_imatrix),
            Rule("attn_output", "IQ3_S"),
        ),
        output="Q5_K",
        embedding="IQ3_S",
    ),
    "IQ3_XS": Recipe(
        22,
        "IQ3_S",
        (
            *_ATTENTION_OUT_OF_EXPERTS,
            Rule("attn_v", "Q4_K", _grouped),
            Rule("attn_k", "IQ3_XXS"),
            Rule("attn_q", "IQ3_XXS"),
            *(
                Rule(
                    role,
                    "IQ3_XXS",
                    lambda context: context.layers // 8 <= context.layer < 7 * context.layers // 8,
                )
                for role in ("ffn_gate", "ffn_up")
            ),
        ),
    ),
    "IQ3_S": Recipe(26, "IQ3_S", (*_ATTENTION_OUT_OF_EXPERTS, Rule("attn_v", "Q4_K", _grouped))),
    "IQ3_M": Recipe(
        27,
        "IQ3_S",
        (
            *_ATTENTION_OUT_OF_EXPERTS,
            Rule("attn_v", "Q4_K"),
            Rule("ffn_down", "Q4_K", _first(8)),
            Rule("ffn_down", "Q4_K", _both(_eight_experts, _sensitive)),
            Rule("attn_output", "Q4_K"),
        ),
    ),
    "IQ4_NL": Recipe(
        25,
        "IQ4_NL",
        (
            *_ATTENTION_OUT_OF_EXPERTS,
            Rule("attn_v", "Q5_K", _grouped),
            Rule("ffn_down", "Q5_K", _both(_no_imatrix, _first(8))),
        ),
    ),
    "IQ4_XS": Recipe(
        30,
        "IQ4_XS",
        (
            *_ATTENTION_OUT_OF_EXPERTS,
            Rule("attn_v", "Q5_K", _grouped),
            Rule("ffn_down", "Q5_K", _both(_no_imatrix, _first(8))),
        ),
    ),
    "TQ1_0": Recipe(36, "TQ1_0", _ATTENTION_OF_EXPERTS, embedding="Q4_K"),
    "TQ2_0": Recipe(37, "TQ2_0", _ATTENTION_OF_EXPERTS, embedding="Q4_K"),
    "MXFP4_MOE": Recipe(
        38,
        "MXFP4",
        (Rule("experts", "MXFP4"), Rule("any", "Q8_0")),
        output="Q8_0",
        embedding="Q8_0",
    ),
    "NVFP4": Recipe(39, "NVFP4", output="Q8_0", embedding="Q8_0"),
    "Q1_0": Recipe(40, "Q1_0", _ATTENTION_OF_EXPERTS),
    "Q2_0": Recipe(41, "Q2_0", _ATTENTION_OF_EXPERTS, embedding="Q4_K"),
    "COPY": Recipe(None, None),
}
_ALIASES = {
    "Q3_K": "Q3_K_M",
    "Q4_K": "Q4_K_M",
    "Q5_K": "Q5_K_M",
    "MXFP4": "MXFP4_MOE",
    "Q1_0_G128": "Q1_0",
}

# If a row is not a whole number of blocks: the format that is tried next. What is not named here
# goes to F16.
FALLBACKS: dict[str, str] = {
    **dict.fromkeys(
        ("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_XS"), "IQ4_NL"
    ),
    **dict.fromkeys(("Q2_K", "Q3_K", "TQ1_0", "TQ2_0", "Q1_0", "Q2_0", "NVFP4"), "Q4_0"),
    "Q4_K": "Q5_0",
    "Q5_K": "Q5_1",
    "Q6_K": "Q8_0",
}

_FLOATS = ("F32", "F16", "BF16")
_LAYER = re.compile(r"blk\.(\d+)\.")
_EXACT = {
    "output.weight": "output",
    "token_embd.weight": "embedding",
    "per_layer_token_embd.weight": "embedding",
}
# anywhere: `dec.blk.0.cross_attn_v.weight`
_ROLE = re.compile(r"(attn_(?:qkv|kv_b|v|k|q|output))\.weight|(ffn_(?:up|gate|down))")
_VALUES = {"attn_qkv": "attn_v", "attn_kv_b": "attn_v"}
_KEPT = re.compile(
    r"_norm\.weight|ffn_gate_(?:inp|tid2eid)\.weight|(?:ssm|ple)_conv1d|shortconv\.conv\.weight|attn_rel_b\.weight|indexer\.[kq]_proj\.weight"
    r"|^(?:position_embd|token_types)\.weight$|\.position_embd|altup|laurel|per_layer_model_proj"
    r"|time_mix_(?:first|lerp_fused|[wva][012]|g[12]|decay_w[12])\.weight"
    r"|sam\.(?:pos_embd|neck\.|net_)|\.rel_pos|\.patch_embd|\.patch_merger|a\.rvq\.codebook|mm\.a\.code_embd"
)
# of one architecture: tensors that no recipe changes, and those that get no fewer bits than Q8_0
_KEPT_OF = {
    "glm5-next": re.compile(
        r"hc_|indexer\.(?:attn_[qk]|proj)|indexer_compressor_(?:gate|ape)"
        r"|(?:ssm_(?:[fg]_[ab]|beta)|attn_(?:kv_a_mqa|[kv]_b))\.weight"
    )
}
_EIGHT_BITS_OF = {"glm5-next": re.compile(r"attn_q_[ab]\.|nextn\.eh_proj")}
_NONE = re.compile(r"(?!)")
_SMALLEST_ROW = 32


_NUMBERS = {str(recipe.file_type): name for name, recipe in RECIPES.items()}


def recipe_name(name: str) -> str:
    """The recipe that a user calls `name`, in any case or by its file type's number, as `RECIPES`
    has it; raises QuantError for an unknown one.
    """
    found = name.upper() if isinstance(name, str) else None
    found = _NUMBERS.get(found, _ALIASES.get(found, found))
    if found not in RECIPES:
        known = (*RECIPES, *_ALIASES)
        close = get_close_matches(str(name).upper(), known, n=1)
        raise QuantError(
            f"unknown recipe {name!r}, wanted one of {', '.join(known)}, or a file type's number"
            + (f"; did you mean {close[0]}?" if close else "")
        )
    return found


def recipe_named(name: str) -> Recipe:
    """The recipe called `name`, see `recipe_name`."""
    return RECIPES[recipe_name(name)]


def layer_of(name: str) -> int | None:
    """The layer number at the beginning of a tensor's name, None without one."""
    match = _LAYER.match(name)
    return int(match[1]) if match else None


def roles_of(name: str) -> tuple[str, ...]:
    """The roles of a tensor, the most specific first; empty if no rule is about it."""
    if name in _EXACT:
        return (_EXACT[name],)
    roles = ("experts",) if name.endswith("_exps.weight") else ()
    match = _ROLE.search(name)
    if match is None:
        return roles
    role = match[1] or match[2]
    return (*roles, _VALUES.get(role, role))


def is_kept(name: str, shape: tuple[int, ...], arch: str = "") -> bool:
    """Whether no recipe changes a tensor: vectors (of any shape), norms, routers, convolutions and
    similar ones.
    """
    matrix = any(size > 1 for size in shape[:-1]) and shape[-1] >= _SMALLEST_ROW
    if not matrix or not name.endswith("weight") or _KEPT.search(name) is not None:
        return True
    return _KEPT_OF.get(arch, _NONE).search(name) is not None


def choose(
    name: str, columns: int, recipe: Recipe, context: TensorContext, *, pure: bool = False
) -> str:
    """The format of a tensor that is not kept, in any recipe but COPY; `pure` ignores the rules and
    uses the base format everywhere.
    """
    roles = roles_of(name)
    if recipe.base is None:
        raise QuantError(f"{name}: a copy keeps every format, wanted a recipe with one of its own")
    wanted = recipe.base
    if not pure:
        if _EIGHT_BITS_OF.get(context.arch, _NONE).search(name) and wanted not in _FLOATS:
            wanted = "Q8_0"
        elif "output" in roles or ("embedding" in roles and context.tied):
            wanted = recipe.output if columns % format_named(recipe.output).columns == 0 else "Q8_0"
        elif "embedding" in roles:
            wanted = recipe.embedding or recipe.base
        else:
            wanted = next(
                (
                    rule.format
                    for rule in recipe.rules
                    if rule.role in (*roles, "any") and rule.when(context)
                ),
                recipe.base,
            )
            if context.large and "attn_v" in roles and wanted in ("Q3_K", "Q4_K"):
                wanted = recipe.large_values or wanted
    return fitting(wanted, columns)


def fitting(wanted: str, columns: int) -> str:
    """`wanted`, or the first of its fallbacks whose blocks fill rows of `columns` exactly."""
    while columns % format_named(wanted).columns:
        wanted = FALLBACKS.get(wanted, "F16")
    return wanted
