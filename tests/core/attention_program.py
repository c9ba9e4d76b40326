"""A program that is only attention: rows come ready from a table of random q, k, v, so that a test
knows all of them.
"""

import numpy as np

from oxillama._core.tape import Batch, EmbeddingTable, PageMemory, Program

VOCAB = 64


def rows_of(width, seed=0, vocab=VOCAB):
    return (np.random.default_rng(seed).standard_normal((vocab, width)) * 0.5).astype(np.float32)


def program(
    *,
    q_heads=4,
    kv_heads=2,
    k_dim=16,
    v_dim=None,
    num_threads=1,
    isa=None,
    max_rows=512,
    layers=1,
    seed=0,
    vocab=VOCAB,
    rope=None,
    style="neox",
    q_norm=None,
    k_norm=None,
    q_scale=1.0,
    window=0,
    softcap=0.0,
    sinks=None,
    rows=None,
    **more,
):
    """ops: embed into slot 0, then per layer rope_store and attend into slot 1."""
    v_dim = k_dim if v_dim is None else v_dim
    width = q_heads * k_dim + kv_heads * (k_dim + v_dim)
    rows = rows_of(width, seed, vocab) if rows is None else rows
    table = EmbeddingTable(rows.reshape(-1).view(np.uint8), "F32", vocab, width)
    shape = dict(q_heads=q_heads, kv_heads=kv_heads, k_dim=k_dim, v_dim=v_dim)
    ops = [("embed", dict(out=0, table=table, scale=1.0))]
    slots = [width, q_heads * v_dim]
    if rope is not None:
        slots.append(2 * len(rope))
        ops.append(("rope_table", dict(out=2, inv_freq=rope, mscale=1.0)))
    for layer in range(layers):
        ops.append(
            (
                "rope_store",
                dict(
                    x=0,
                    rope=None if rope is None else 2,
                    rope_dims=0 if rope is None else 2 * len(rope),
                    style=style,
                    q_norm=q_norm,
                    k_norm=k_norm,
                    eps=1e-6,
                    q_scale=q_scale,
                    layer=layer,
                    **shape,
                ),
            )
        )
        ops.append(
            (
                "attend",
                dict(
                    x=0,
                    out=1,
                    layer=layer,
                    window=window,
                    softcap=softcap,
                    sinks=sinks,
                    **shape,
                    **more,
                ),
            )
        )
    return Program(
        ops,
        slots,
        kv_layers=[(kv_heads, k_dim, v_dim)] * layers,
        vocab_size=vocab,
        hidden_size=width,
        max_rows=max_rows,
        num_threads=num_threads,
        isa=isa,
    )


def memory_for(step, tokens, kv_type="f16", page_size=16, seed=None):
    """(memory, page ids for so many tokens): ascending, or shuffled by a seed with unused pages
    between.
    """
    pages = -(-tokens // page_size)
    memory = PageMemory(step.kv_layers, kv_type, page_size)
    memory.ensure(2 * pages)
    ids = (
        np.arange(pages)
        if seed is None
        else np.random.default_rng(seed).permutation(2 * pages)[:pages]
    )
    return memory, ids.astype(np.int32)


def tokens_for(n, seed=0):
    """Random tokens, int32 (n,)."""
    return np.random.default_rng(seed).integers(0, VOCAB, n).astype(np.int32)


def run(step, tokens, *, chunks=None, kv_type="f16", page_size=16, seed=None, start=0):
    """Attention rows of a whole sequence, `chunks` rows at a time (an int or a list)."""
    memory, table = memory_for(step, len(tokens), kv_type, page_size, seed)
    sizes = [chunks or len(tokens)] * len(tokens) if not isinstance(chunks, list) else chunks
    out, at = [], start
    for size in sizes:
        size = min(size, len(tokens) - at)
        if size <= 0:
            break
        batch = Batch(
            tokens[at : at + size], np.arange(at, at + size), [table], np.zeros(size, int), []
        )
        step.run_until(batch, memory, len(step) - 1)
        out.append(step.slot(1, size))
        at += size
    return np.concatenate(out)
