"""HRM-Text (Wang et al. 2025, "Hierarchical Reasoning Model"; by its code in transformers,
`models/hrm_text`): two stacks of layers, a low one that runs several times for each run of the high
one, both on the sum of two states.
"""

from oxillama.errors import ModelError
from oxillama.model.blocks import attention, gated_ffn
from oxillama.model.builder import Builder, Layer, Value, architecture


@architecture("hrm_text")
def hrm(b: Builder) -> Value:
    """The low stack is the file's first layers, the high one those after it; each run has keys and
    values of its own. Norms have no weights, attention is gated (by name).
    """
    keys = b.keys
    layers, high, low = (
        keys.integer(f"hrm.{name}", minimum=1, maximum=1 << 10)
        for name in ("layers_per_stack", "h_cycles", "l_cycles")
    )
    if b.n_layers != layers * high * (low + 1):
        raise ModelError(
            f"{b.arch}.block_count: found {b.n_layers}, wanted {layers * high * (low + 1)}, "
            f"{high} runs of {low + 1} stacks of {layers} layers"
        )
    # of a prompt that sees itself whole, which is not how these files are run
    keys.flag("hrm.prefix_lm", default=False)

    def stack(x: Value, first: int) -> Value:
        for index in range(first, first + layers):
            layer = Layer(b, index)
            x = x + attention(b, layer, b.norm(x, None), style="neox")
            x = x + gated_ffn(b, layer, b.norm(x, None), act="silu")
        return b.norm(x, None)

    upper = b.embed(scale=keys.number("embedding_scale", default=1.0, minimum=0.0) or 1.0)
    lower: Value | None = None
    for _ in range(high):
        for _ in range(low):
            start = b.vector("hrm.z_l_init", b.hidden) if lower is None else lower
            lower = stack(upper + start, 0)
        assert lower is not None
        upper = stack(upper + lower, layers)
    return b.logits(upper, norm=None)
