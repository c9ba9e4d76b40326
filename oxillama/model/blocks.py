"""What several architectures share: attention over a paged cache, feed-forward networks (dense and
with experts), and selective state spaces.

A block has a parameter only if two architectures need it; otherwise the code is in the
architecture's own file. Optional tensors (biases, sinks, fused projections) are found by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Literal

import numpy as np

from oxillama.errors import ModelError
from oxillama.gguf.keys import REQUIRED
from oxillama.model.attention import Heads
from oxillama.model.builder import Builder, Layer, Predictor, Value
from oxillama.model.rope import Rope

HeadNorm = Literal["heads", "each", "rows", "plain"]  # what a norm of queries and keys runs over
Block = Callable[[Builder, Layer, Value], Value]  # a layer from its input to its output


def trunk(b: Builder) -> Iterator[Layer]:
    """The layers of the model without those that predict further tokens, which do not affect the
    logits.
    """
    count = b.trunk_layers
    for index in range(count, b.n_layers):
        b.used.update(name for name in b.reader.tensors if name.startswith(f"blk.{index}."))
    return (layer for layer in b.layers() if layer.index < count)


def predicts(layer: Layer) -> bool:
    """Whether this layer predicts further tokens."""
    return layer.has("nextn.eh_proj.weight")


def decoder(b: Builder, block: Block, *, further: bool = True, **head: Any) -> Value:
    """Logits of the embedding behind every layer of the trunk. further: `block` is what predicts
    further tokens, too; head: parameters of `predicting`.
    """
    x = b.embed()
    for layer in trunk(b):
        x = block(b, layer, x)
    return predicting(b, x, block, **head) if further else b.logits(x, **head)


def predicting(
    b: Builder,
    x: Value,
    block: Block,
    *,
    normed: bool = True,
    last: str | None = None,
    join: Callable[[Builder, Value], Value] | None = None,
    **head: Any,
) -> Value:
    """`Builder.logits` of x, and the predictor of the file's first layer that predicts further
    tokens, if it has one (DeepSeek-V3, equations 21 to 23): from the next token and the row that it
    was drawn from, `block` makes the row for the token after that.

    normed: the row is taken after the final norm; last: the kind of the predictor's own, that of
    the final norm by default; join: makes one row of x where x is several side by side, each of
    which meets the token; head: parameters of `Builder.logits`.
    """
    logits = b.logits(x if join is None else join(b, x), **head)
    graph = b.aside()
    layer = Layer(graph, b.trunk_layers)
    if b.trunk_layers == b.n_layers or b.depth < b.n_layers or not predicts(layer):
        return logits
    row = b.embedding if normed and b.embedding is not None else x
    own = layer.name("nextn.embed_tokens.weight")
    kind = head.get("kind", "rms")
    token = graph.embed(name=own if b.has(own) else "token_embd.weight")
    token = layer.norm(token, "nextn.enorm", kind=kind)
    before = graph.features(0, row.width, beside=True)
    rows = [before]
    if row.width > b.hidden:
        rows = [before.columns(at, at + b.hidden) for at in range(0, row.width, b.hidden)]
    rows = [graph.concat(token, layer.norm(part, "nextn.hnorm", kind=kind)) for part in rows]
    rows = [layer.linear(part, "nextn.eh_proj", b.hidden) for part in rows]
    y = block(graph, layer, graph.concat(*rows) if len(rows) > 1 else rows[0])
    for name in ("nextn.shared_head_norm", "layer_output_norm"):
        if layer.has(f"{name}.weight"):
            head["norm"] = layer.name(name)
            break
    further = graph.logits(
        y if join is None else join(graph, y),
        output=layer.name("nextn.shared_head_head"),
        **{**head, "kind": last or kind},
    )
    b.mark_carried(row)
    graph.mark_carried(graph.embedding if normed and graph.embedding is not None else y)
    b.predictor = Predictor(graph, further)
    return logits


def heads_of(b: Builder, layer: Layer) -> Heads:
    """The attention shape of this layer from the file's keys, checked for consistency."""
    query = layer.integer("attention.head_count", minimum=0, maximum=1 << 16)
    kv = layer.integer("attention.head_count_kv", default=query, minimum=0, maximum=1 << 16)
    for key, found in (("head_count", query), ("head_count_kv", kv)):
        if not found:
            raise ModelError(f"{b.arch}.attention.{key}: found 0 in layer {layer.index}, wanted 1")
    if kv > query or query % kv:
        raise ModelError(
            f"{b.arch}.attention.head_count_kv: found {kv}, wanted a divisor of head_count {query}"
        )
    if "attention.key_length" in b.keys:
        default = None
    else:
        default, rest = divmod(b.hidden, query)
        if rest:
            raise ModelError(
                f"{b.arch}.attention.head_count: found {query}, wanted a divisor of "
                f"embedding_length {b.hidden}"
            )
    key_dim = b.keys.integer("attention.key_length", default=default, minimum=1, maximum=1 << 12)
    value_dim = b.keys.integer(
        "attention.value_length", default=key_dim, minimum=1, maximum=1 << 12
    )
    return Heads(query, kv, key_dim, value_dim)


def rope_dims(b: Builder, heads: Heads) -> int:
    """How many floats of each head are rotated."""
    return b.keys.integer(
        "rope.dimension_count", default=heads.key_dim, minimum=2, maximum=heads.key_dim
    )


def near_ropes(b: Builder, *, scaled: bool = False) -> Callable[[int], Rope]:
    """Makes the rotation of windowed layers over so many floats: its base is `rope.freq_base_swa`,
    that of global layers where the file has none, and the file's scaling is for it only if
    `scaled`.
    """
    base = b.keys.number("rope.freq_base", default=10000.0)
    return partial(b.rope, base_key="rope.freq_base_swa", base=base, scaled=scaled)


def attention(
    b: Builder,
    layer: Layer,
    x: Value,
    *,
    style: str,
    qk_norm: HeadNorm | None = None,
    norm_kind: str = "rms",
    rope: Rope | Literal["file"] | None = "file",
    scale: float | None = None,
    slopes: bool = False,
    output: str = "attn_output",
    gate_act: str = "sigmoid",
    **how: Any,
) -> Value:
    """Grouped-query attention: q, k, v projections, attention, output projection (`output`).

    style: how pairs are rotated, "norm" (adjacent floats) or "neox" (the two halves). qk_norm: a
    norm over each head of queries and keys (plain: without a weight; each: with a weight per head),
    or over their whole rows. rope: the file's own, another, or None for no rotation. scale: by
    default the file's `attention.scale`, otherwise 1/sqrt(key_dim). slopes: ALiBi. how: other
    parameters of `Builder.attend`, as window, softcap, temper. If the file has a gate for the
    result, it is applied under gate_act, with a number for each float or for each head; likewise a
    norm of the result.
    """
    heads = heads_of(b, layer)
    if rope == "file":
        rope = b.rope(rope_dims(b, heads))
    q, k, v, gate = _projected(b, layer, x, heads)
    norms: dict[str, Any] = {}
    if qk_norm == "heads" and norm_kind == "rms":
        norms = {
            "q_norm": layer.vector("attn_q_norm.weight", heads.key_dim),
            "k_norm": layer.vector("attn_k_norm.weight", heads.key_dim),
            "eps": b.epsilon(),
        }
    elif qk_norm == "plain":
        one = np.ones(heads.key_dim, np.float32)
        norms = {"q_norm": one, "k_norm": one, "eps": b.epsilon()}
    elif qk_norm is not None:
        parts = (1, 1) if qk_norm == "rows" else (heads.query, heads.kv)
        q = layer.norm(q, "attn_q_norm", kind=norm_kind, heads=parts[0])
        k = layer.norm(k, "attn_k_norm", kind=norm_kind, heads=parts[1])
    out = b.attend(
        q,
        k,
        v,
        heads=heads,
        rope=rope,
        style=style,
        scale=scale or b.keys.number("attention.scale", default=0.0) or heads.key_dim**-0.5,
        sinks=layer.optional_vector("attn_sinks.weight", heads.query),
        slopes=alibi(b, heads.query) if slopes else None,
        **norms,
        **how,
    )
    if gate is not None:
        out = under_gate(b, out, gate, heads=heads.query, act=gate_act)
    if layer.has("attn_sub_norm.weight"):
        out = layer.norm(out, "attn_sub_norm")
    return layer.linear(out, output, b.hidden)


def _projected(
    b: Builder, layer: Layer, x: Value, heads: Heads
) -> tuple[Value, Value, Value, Value | None]:
    """q, k and v of a row, from one fused matrix if the file has it, within the file's clamp; and
    the gate of the result: `gate_of`, or the second half of each head of `attn_q`.
    """
    widths = (
        heads.query * heads.key_dim,
        heads.kv * heads.key_dim,
        heads.kv * heads.value_dim,
    )
    gate = gate_of(b, layer, x, heads=heads.query, width=heads.query * heads.value_dim)
    if layer.has("attn_qkv.weight"):
        q, k, v = fused(layer, x, "attn_qkv", widths)
    elif gate is None and _is_gated(b, layer, widths[0]):
        both = layer.linear(x, "attn_q", 2 * widths[0])
        q = both.columns(0, heads.key_dim, heads=heads.query)
        gate = both.columns(heads.key_dim, 2 * heads.key_dim, heads=heads.query)
        k, v = (layer.linear(x, f"attn_{n}", w) for n, w in zip("kv", widths[1:]))
    else:
        q, k, v = (layer.linear(x, f"attn_{n}", w) for n, w in zip("qkv", widths))
    limit = b.keys.number("attention.clamp_kqv", default=0.0, minimum=0.0)
    if limit:
        q, k, v = (b.clamp(part, -limit, limit) for part in (q, k, v))
    return q, k, v, gate


def gate_of(b: Builder, layer: Layer, x: Value, *, heads: int, width: int) -> Value | None:
    """The file's gate for the result of attention, `attn_gate`: a number for each head, or for each
    of `width` floats; None for none.
    """
    if not layer.has("attn_gate.weight"):
        return None
    single = b.reader.tensors[layer.name("attn_gate.weight")].shape[0] == heads
    return layer.linear(x, "attn_gate", heads if single else width)


def under_gate(b: Builder, y: Value, gate: Value, *, heads: int, act: str) -> Value:
    """The result of attention times act(gate), which has a number for each head or each float."""
    if gate.width != y.width:
        return b.head_scale(y, b.activate(gate, act), heads=heads)
    return b.gate(gate, y, act=act)


def _is_gated(b: Builder, layer: Layer, width: int) -> bool:
    """Whether `attn_q` has twice the rows that queries need."""
    info = b.reader.tensors.get(layer.name("attn_q.weight"))
    return info is not None and info.shape[:1] == (2 * width,)


def sections_of(b: Builder, *, mixed: bool) -> list[int]:
    """Which of a token's positions (time, height, width) each rotated pair uses, from the file's
    `rope.dimension_sections` (pairs of each). mixed: pairs take turns until a section is used up,
    and the rest use time; otherwise section follows section.
    """
    key = "rope.dimension_sections"
    counts = b.keys.integers(key, maximum=1 << 16)
    if len(counts) not in (3, 4):
        raise ModelError(
            f"{b.keys.name(key)}: found an array of {len(counts)}, wanted 3 or 4 integers"
        )
    if not mixed:
        return [which for which, count in enumerate(counts) for _ in range(count)]
    return [i % 3 if i % 3 and i < 3 * counts[i % 3] else 0 for i in range(sum(counts))]


def latent_norm(b: Builder, layer: Layer, x: Value, name: str) -> Value:
    """The norm of the latent from which queries, or keys and values, are unfolded. No key gives its
    epsilon: the published code of DeepSeek V2 and of similar models leaves it at this value.
    """
    return b.norm(x, layer.name(name), eps=1e-6)


def deepstack(b: Builder, layer: Layer, x: Value) -> Value:
    """x plus the image features that are added after this layer. The file's first
    `n_deepstack_layers` layers have such features; a batch brings them in addition to those that
    replace the embedding (Meng et al. 2024, DeepStack).
    """
    count = b.keys.integer("n_deepstack_layers", default=0, minimum=0, maximum=b.n_layers)
    if layer.index >= count:
        return x
    return x + b.features(b.hidden * (layer.index + 1), b.hidden)


def is_windowed(b: Builder, index: int, period: int, *, first: bool = False) -> bool:
    """Whether layer `index` has a sliding window, by the file's pattern: a flag per layer (0 and 1
    in some files), or a period whose last layer (first: whose first layer) sees all keys; `period`
    if the file has none.
    """
    key = "attention.sliding_window_pattern"
    held = b.keys.metadata.get(b.keys.name(key), 0)
    if not isinstance(held, int):
        # layers that predict further tokens may have none, and see all keys then
        count = b.trunk_layers if len(held) == b.trunk_layers else b.n_layers
        if index >= count:
            return False
        if len(held) and all(type(one) in (int, np.int32, np.uint32) for one in held):
            return b.keys.integers(key, count=count, minimum=0, maximum=1)[index] == 1
        return b.keys.flags(key, count=count)[index]
    return (index + (not first)) % b.keys.integer(key, minimum=1, default=period) != 0


def fused(layer: Layer, x: Value, suffix: str, widths: tuple[int, ...]) -> list[Value]:
    """The products of one matrix that holds the rows of several matrices one after another."""
    total, at, found = sum(widths), 0, []
    for width in widths:
        found.append(layer.linear(x, suffix, total, take=slice(at, at + width)))
        at += width
    return found


def alibi(b: Builder, heads: int, *, default: float = 8.0) -> np.ndarray:
    """The slope of each head (Press et al. 2021, "Train Short, Test Long", section 3): a geometric
    series for a power of two of heads, and every other number of the series twice as long for the
    rest. A score is reduced by slope times distance. default: used if `attention.max_alibi_bias` is
    missing; the paper's value is 8. A file cannot say that there is none by a 0, which would be
    slopes of 1.
    """
    bias = b.keys.number("attention.max_alibi_bias", default=default, minimum=1e-3)
    power = 1 << (heads.bit_length() - 1)
    first = 2.0 ** (-bias / power * np.arange(1, power + 1))
    rest = 2.0 ** (-bias / (2 * power) * np.arange(1, 2 * (heads - power), 2))
    return np.concatenate([first, rest]).astype(np.float32)


def gated_ffn(
    b: Builder,
    layer: Layer,
    x: Value,
    *,
    act: str,
    suffix: str = "",
    width: int = 0,
    limit: float = 0.0,
    early: bool = False,
    raised: bool = False,
) -> Value:
    """Feed-forward with a gate: down(act(gate x) * up x). gate and up may be one matrix, `ffn_up`;
    a norm `ffn_sub_norm` comes before down if the file has it. suffix: comes after `ffn_gate` in
    the names of its tensors; width: 0 for the file's `feed_forward_length`; limit, early, raised:
    see `limited`.
    """
    if suffix:
        width = b.shape(layer.name(f"ffn_down{suffix}.weight"), 2)[1]
    else:
        said = layer.integer("feed_forward_length", default=width or REQUIRED, maximum=1 << 24)
        width = width or said
    both, tensors = layer.name(f"ffn_up{suffix}.weight"), b.reader.tensors
    separate = layer.has(f"ffn_gate{suffix}.weight") or not b.has(both)
    if not separate and tuple(tensors[both].shape) == (2 * width, x.width):
        gate, up = fused(layer, x, f"ffn_up{suffix}", (width, width))
    else:
        gate = layer.linear(x, f"ffn_gate{suffix}", width)
        up = layer.linear(x, f"ffn_up{suffix}", width)
    y = limited(b, gate, up, act=act, limit=limit, early=early, raised=raised)
    if layer.has(f"ffn_sub_norm{suffix}.weight"):
        y = layer.norm(y, f"ffn_sub_norm{suffix}")
    return layer.linear(y, f"ffn_down{suffix}", b.hidden)


def limited(
    b: Builder,
    gate: Value,
    up: Value,
    *,
    act: str,
    limit: float,
    early: bool = False,
    raised: bool = False,
) -> Value:
    """act(gate) * up, the first below `limit` (early: gate itself, before act) and the second
    within it; 0 for no limit. raised: up + 1 instead of up (gpt-oss).
    """
    if not limit:
        return b.gate(gate, up, act=act)
    if early:
        gate, up = b.clamp(gate, -3e38, limit), b.clamp(up, -limit, limit)
        return b.gate(gate, up + np.ones(up.width, np.float32) if raised else up, act=act)
    return b.clamp(b.activate(gate, act), -3e38, limit) * b.clamp(up, -limit, limit)


def ffn(b: Builder, layer: Layer, x: Value, *, act: str) -> Value:
    """Feed-forward without a gate: down(act(up x))."""
    width = layer.integer("feed_forward_length", maximum=1 << 24)
    up = layer.linear(x, "ffn_up", width)
    return layer.linear(b.activate(up, act), "ffn_down", b.hidden)


_GATINGS = {1: "softmax", 2: "sigmoid", 3: "chosen", 4: "sqrt_softplus"}


def hidden_act(b: Builder, known: Mapping[str, str]) -> str:
    """The activation that the file names, as parameter `act` of a feed-forward network; the first
    of those known where it names none.
    """
    name = b.keys.text("hidden_activation", default=next(iter(known)))
    if name not in known:
        raise ModelError(
            f"{b.arch}.hidden_activation: found {name!r:.60}, wanted "
            f"{' or '.join(map(repr, known))}"
        )
    return known[name]


def routing_of(b: Builder, *, gating: str = "softmax", normalise: bool = False) -> dict[str, Any]:
    """How experts are chosen and weighted, from the file's `expert_*` keys, as parameters of
    `expert_ffn`. gating, normalise: if the file does not say. The score of a group is that of its
    best expert, with sigmoids the sum of its two best (DeepSeek-AI 2024, DeepSeek-V3, section
    2.1.2).
    """
    keys = b.keys
    gating = _GATINGS.get(
        keys.integer("expert_gating_func", minimum=1, maximum=4, default=0), gating
    )
    # the shared experts' tensors say their number and width; a file of dense layers has no experts
    for key in (
        *("expert_shared_count", "expert_shared_feed_forward_length"),
        *("expert_count", "expert_used_count", "expert_feed_forward_length"),
    ):
        keys.integer(key, default=0) if _is_number(b, key) else None
    return dict(
        gating=gating,
        normalise=keys.flag("expert_weights_norm", default=normalise),
        scale=keys.number("expert_weights_scale", default=1.0, minimum=0.0) or 1.0,
        groups=max(1, keys.integer("expert_group_count", default=1)),
        groups_used=max(1, keys.integer("expert_group_used_count", default=1)),
        group_by="two" if gating == "sigmoid" else "best",
    )


def _is_number(b: Builder, key: str) -> bool:
    """Whether the file has that key with one value, not one per layer."""
    return isinstance(b.keys.metadata.get(b.keys.name(key)), int)


def sparse_ffn(b: Builder, layer: Layer, x: Value, *, act: str = "silu", **routing: Any) -> Value:
    """A dense network in the first `leading_dense_block_count` layers, with the limit of shared
    experts, and experts in the others; what predicts further tokens may be dense.
    """
    dense = layer.index < b.keys.integer("leading_dense_block_count", default=0)
    if dense or predicts(layer) and layer.has("ffn_down.weight"):
        how = {name: routing.get(name, False) for name in ("early", "raised")}
        return gated_ffn(b, layer, x, act=act, limit=routing.get("shared_limit", 0.0), **how)
    return expert_ffn(b, layer, x, act=act, **routing)


def sparse_decoder(
    b: Builder,
    *,
    style: str,
    qk_norm: Literal["heads", "rows"] | None = None,
    ffn_norm: str = "ffn_norm",
    sections: list[int] | None = None,
    further: bool = False,
    **routing: Any,
) -> Value:
    """Llama's decoder with `sparse_ffn` as its feed-forward network. further: what predicts further
    tokens is such a layer, too; routing: parameters of `expert_ffn`.
    """

    def block(b: Builder, layer: Layer, x: Value) -> Value:
        rope = b.rope(rope_dims(b, heads_of(b, layer)), sections=sections)
        y = layer.norm(x, "attn_norm")
        x = x + attention(b, layer, y, style=style, qk_norm=qk_norm, rope=rope)
        x = x + sparse_ffn(b, layer, layer.norm(x, ffn_norm), **routing)
        return deepstack(b, layer, x)

    return decoder(b, block, further=further)


def expert_ffn(
    b: Builder,
    layer: Layer,
    x: Value,
    *,
    act: str,
    gating: str = "softmax",
    normalise: bool = True,
    scale: float = 1.0,
    groups: int = 1,
    groups_used: int = 1,
    group_by: str = "best",
    width: int = 0,
    limit: float = 0.0,
    early: bool = False,
    raised: bool = False,
    shared_limit: float = 0.0,
    scored: Value | None = None,
) -> Value:
    """A feed-forward network of experts, `expert_used_count` of `expert_count` for each row, plus
    the file's shared experts. The parameters from `gating` on are those of `Builder.route`. width:
    of an expert, 0 for the file's `expert_feed_forward_length`; limit, early, raised, shared_limit:
    see `limited`; scored: the rows used for the choice, None for x.
    """
    count = layer.integer("expert_count", minimum=1, maximum=1 << 12)
    default = layer.integer("feed_forward_length", default=0)
    said = layer.integer("expert_feed_forward_length", default=default)
    width = width or said or default
    routes = routed(
        b,
        layer,
        x if scored is None else scored,
        gating=gating,
        normalise=normalise,
        scale=scale,
        groups=groups,
        groups_used=groups_used,
        group_by=group_by,
    )
    gate, up = expert_gate_up(layer, x, routes, width, count)
    y = limited(b, gate, up, act=act, limit=limit, early=early, raised=raised)
    y = b.combine(layer.experts(y, routes, "ffn_down_exps", b.hidden, count=count), routes)
    if not layer.has("ffn_up_shexp.weight"):
        return y
    how = dict(limit=shared_limit, early=early, raised=raised)
    return y + shared_ffn(b, layer, x, act=act, **how)


def routed(b: Builder, layer: Layer, x: Value, **params: Any) -> Value:
    """The experts of each row by the scores of `ffn_gate_inp`, or by its token where the file has a
    table of these (`ffn_gate_tid2eid`); params: those of `Builder.route`.
    """
    count = layer.integer("expert_count", minimum=1, maximum=1 << 12)
    used = layer.integer("expert_used_count", minimum=1, maximum=count)
    groups, chosen = params.get("groups", 1), params.get("groups_used", 1)
    if count % groups or not 1 <= chosen <= groups or chosen * (count // groups) < used:
        raise ModelError(
            f"{b.arch}.expert_group_count: found {groups}, of which expert_group_used_count "
            f"chooses {chosen}, wanted equal parts of {count} experts, and {used} experts in those "
            "chosen"
        )
    scores = layer.linear(x, "ffn_gate_inp", count)
    if layer.has("ffn_gate_tid2eid.weight"):
        table = layer.name("ffn_gate_tid2eid.weight")
        by_token = b.numbers(table, b.vocab_size, used, count)
        return b.route(scores, used=used, by_token=by_token, **params)
    return b.route(scores, used=used, bias=_selection_bias(b, layer, count), **params)


def _selection_bias(b: Builder, layer: Layer, count: int) -> np.ndarray | None:
    """Added to scores for the choice only: `exp_probs_b.bias`, which some files hold without its
    suffix.
    """
    for name in ("exp_probs_b.bias", "exp_probs_b"):
        if layer.has(name):
            return layer.vector(name, count)
    return None


def expert_gate_up(
    layer: Layer, x: Value, routes: Value, width: int, count: int
) -> tuple[Value, Value]:
    """The two products of a gated network of experts; some files hold their matrices as one."""
    if layer.has("ffn_gate_up_exps.weight"):
        used = routes.width // 2
        both = layer.experts(x, routes, "ffn_gate_up_exps", 2 * width, count=count)
        return both.columns(0, width, heads=used), both.columns(width, 2 * width, heads=used)
    return (
        layer.experts(x, routes, "ffn_gate_exps", width, count=count),
        layer.experts(x, routes, "ffn_up_exps", width, count=count),
    )


def shared_ffn(b: Builder, layer: Layer, x: Value, *, act: str, **limits: Any) -> Value:
    """The experts that every row uses, times their own gate if the file has one. limits: those of
    `gated_ffn`.
    """
    y = gated_ffn(b, layer, x, act=act, suffix="_shexp", **limits)
    if not layer.has("ffn_gate_inp_shexp.weight"):
        return y
    return b.weighted(y, b.activate(layer.linear(x, "ffn_gate_inp_shexp", 1), "sigmoid"))


def selective_state_space(b: Builder, layer: Layer, x: Value, *, norms: bool = False) -> Value:
    """The mixer of Mamba (Gu and Dao 2023, section 3.4). norms: dt, B and C are normalised
    (Jamba).
    """
    keys = b.keys
    inner = keys.integer("ssm.inner_size", minimum=1, maximum=1 << 20)
    states = keys.integer("ssm.state_size", minimum=1, maximum=1 << 12)
    rank = keys.integer("ssm.time_step_rank", minimum=1, maximum=1 << 16)
    taps = keys.integer("ssm.conv_kernel", minimum=2, maximum=64)
    x, z = fused(layer, x, "ssm_in", (inner, inner))
    conv = layer.array("ssm_conv1d.weight", inner, taps)
    x = b.conv(x, conv, layer.optional_vector("ssm_conv1d.bias", inner), act="silu")
    dt, state_in, state_out = fused(layer, x, "ssm_x", (rank, states, states))
    if norms:
        dt = layer.norm(dt, "ssm_dt_norm")
        state_in, state_out = (
            layer.norm(state_in, "ssm_b_norm"),
            layer.norm(state_out, "ssm_c_norm"),
        )
    elif keys.flag("ssm.dt_b_c_rms", default=False):
        # Falcon Mamba, whose published code has this epsilon beside that of its other norms
        dt, state_in, state_out = (
            b.norm(part, None, eps=1e-6) for part in (dt, state_in, state_out)
        )
    dt = b.activate(layer.linear(dt, "ssm_dt", inner), "softplus")
    y = b.scan(
        x,
        dt,
        state_in,
        state_out,
        a=layer.array("ssm_a", inner, states),
        d=layer.vector("ssm_d", inner),
    )
    return layer.linear(b.gate(z, y, act="silu"), "ssm_out", b.hidden)


def grouped_state_space(b: Builder, layer: Layer, x: Value, *, shortest: float = 0.0) -> Value:
    """The mixer of Mamba 2 (Dao and Gu 2024, section 7): x, B and C go through the convolution. If
    the file has `ssm_norm`, a norm over each group of the gated result comes before the output
    projection. shortest: what no time step is less than.
    """
    keys = b.keys
    inner = keys.integer("ssm.inner_size", minimum=1, maximum=1 << 20)
    heads = keys.integer("ssm.time_step_rank", minimum=1, maximum=1 << 16)
    groups = keys.integer("ssm.group_count", minimum=1, maximum=heads)
    states = groups * keys.integer("ssm.state_size", minimum=1, maximum=1 << 12)
    taps = keys.integer("ssm.conv_kernel", minimum=2, maximum=64)
    z, *parts, dt = fused(layer, x, "ssm_in", (inner, inner, states, states, heads))
    x, state_in, state_out = convolved(b, layer, parts, taps)
    dt = b.activate(dt + layer.vector("ssm_dt.bias", heads), "softplus")
    if shortest:
        dt = b.clamp(dt, shortest, 3e38)  # no longest one
    y = b.scan(
        *(x, dt, state_in, state_out),
        a=layer.array("ssm_a", heads, 1),
        d=layer.array("ssm_d", heads, 1).reshape(-1),
        groups=groups,
    )
    y = b.gate(z, y, act="silu")
    if layer.has("ssm_norm.weight"):
        y = layer.norm(y, "ssm_norm", heads=groups)
    return layer.linear(y, "ssm_out", b.hidden)


def convolved(b: Builder, layer: Layer, parts: list[Value], taps: int) -> list[Value]:
    """Adjacent values of one convolution, `ssm_conv1d`, each under silu."""
    width = sum(part.width for part in parts)
    weight = layer.array("ssm_conv1d.weight", width, taps)
    bias = layer.optional_vector("ssm_conv1d.bias", width)
    at, made = 0, []
    for part in parts:
        rows = slice(at, at + part.width)
        own = None if bias is None else np.ascontiguousarray(bias[rows])
        made.append(b.conv(part, weight[rows], own, act="silu"))
        at += part.width
    return made
