"""The tape: every op against numpy, validation at the doors, cancelling, and the programs' own
promises.
"""

import gc
import threading
import time

import numpy as np
import pytest

from oxillama._core.panels import PackedMatrix
from oxillama._core.tape import OPS, Batch, CancelFlag, EmbeddingTable, PageMemory, Program
from oxillama.errors import (
    Cancelled,
    ConfigError,
    ContextError,
    EngineError,
    ModelError,
    OxillamaError,
)
from oxillama.model.ops import OPS as CATALOGUE
from tests.core.attention_program import memory_for, program
from tests.reference import rows_oracle as oracle

RNG = np.random.default_rng(0)
WIDTH, VOCAB = 48, 40
TABLE = RNG.standard_normal((VOCAB, WIDTH)).astype(np.float32)
WEIGHT, BIAS = (RNG.standard_normal(WIDTH).astype(np.float32) for _ in range(2))


def table(rows=TABLE):
    return EmbeddingTable(rows.reshape(-1).view(np.uint8), "F32", *rows.shape)


def packed(rows):
    return PackedMatrix(
        np.ascontiguousarray(rows, np.float32).reshape(-1).view(np.uint8), "F32", *rows.shape
    )


def build(ops, slots, **more):
    more = {
        "kv_layers": [],
        "vocab_size": VOCAB,
        "hidden_size": WIDTH,
        "max_rows": 64,
        "num_threads": 2,
        **more,
    }
    return Program(ops, slots, **more)


def batch(tokens, wanted=()):
    return Batch(
        tokens, np.arange(len(tokens)), [np.zeros(8, np.int32)], np.zeros(len(tokens), int), wanted
    )


def memory():
    pages = PageMemory([])
    pages.ensure(1)
    return pages


def after(ops, slots, slot, tokens=tuple(range(20))):
    """Slot `slot` after an embed into slot 0 and `ops`."""
    step = build([("embed", dict(out=0, table=table(), scale=1.0)), *ops], slots)
    step.run_until(batch(tokens), memory(), len(step) - 1)
    return step.slot(slot, len(tokens)), TABLE[list(tokens)]


def test_the_compiled_ops_are_those_of_the_catalogue():
    assert set(OPS) == set(CATALOGUE)


@pytest.mark.parametrize("format, scale", (("F32", 1.0), ("F32", 3.5), ("F16", 1.0)))
def test_embed_unpacks_the_rows_asked_for(format, scale):
    rows = TABLE.astype(np.float16) if format == "F16" else TABLE
    store = EmbeddingTable(rows.reshape(-1).view(np.uint8), format, VOCAB, WIDTH)
    step = build([("embed", dict(out=0, table=store, scale=scale))], [WIDTH])
    step.run_until(batch([3, 3, 39, 0]), memory(), 0)
    assert np.array_equal(
        step.slot(0, 4), rows[[3, 3, 39, 0]].astype(np.float32) * np.float32(scale)
    )
    assert np.array_equal(store.row(7), rows[7].astype(np.float32))


@pytest.mark.parametrize("kind", ("rms", "layer"))
def test_norm_adds_stores_and_normalises(kind):
    ops = [
        ("embed", dict(out=1, table=table(TABLE[::-1].copy()), scale=1.0)),
        (
            "norm",
            dict(
                x=0,
                add=1,
                kind=kind,
                weight=WEIGHT,
                bias=BIAS if kind == "layer" else None,
                eps=1e-5,
                out=2,
                acts={},
            ),
        ),
    ]
    found, rows = after(ops, [WIDTH] * 3, 2)
    summed = rows + TABLE[::-1][:20]
    wanted = (
        oracle.rms_norm(summed, WEIGHT, 1e-5)
        if kind == "rms"
        else oracle.layer_norm(summed, WEIGHT, BIAS, 1e-5)
    )
    assert np.abs(found - wanted).max() <= 1e-5
    assert np.array_equal(after(ops, [WIDTH] * 3, 0)[0], summed)


@pytest.mark.parametrize(
    "op, wanted",
    [
        (("add", dict(x=0, y=0, out=1)), lambda x: x + x),
        (("mul", dict(x=0, y=0, out=1)), lambda x: x * x),
        (("scale", dict(x=0, factor=-2.5, out=1)), lambda x: x * -2.5),
        (("softcap", dict(x=0, cap=1.5, out=1)), lambda x: 1.5 * np.tanh(x / 1.5)),
        (("activate", dict(x=0, kind="silu", out=1)), oracle.ACTIVATIONS["silu"]),
    ],
    ids=lambda v: v[0] if isinstance(v, tuple) else "",
)
def test_elementwise_ops_mean_what_numpy_says(op, wanted):
    found, rows = after([op], [WIDTH] * 2, 1)
    assert np.abs(found - wanted(rows.astype(np.float64))).max() <= 2e-6


def test_wide_rows_are_cut_into_columns_without_a_trace():
    wide = RNG.standard_normal((3, 9000)).astype(np.float32)
    step = build(
        [
            ("embed", dict(out=0, table=table(wide), scale=1.0)),
            ("activate", dict(x=0, kind="silu", out=1)),
            ("mul", dict(x=1, y=0, out=1)),
        ],
        [9000, 9000],
        vocab_size=3,
        hidden_size=9000,
    )
    step.run_until(batch([0, 1, 2]), memory(), 2)
    wanted = oracle.ACTIVATIONS["silu"](wide.astype(np.float64)) * wide
    assert np.abs(step.slot(1, 3) - wanted).max() <= 1e-5


@pytest.mark.parametrize("wanted", ([], [0], [2, 5, 19], list(range(20))), ids=len)
@pytest.mark.parametrize("threads", (1, 2))
def test_only_wanted_rows_reach_the_output(wanted, threads):
    out = RNG.standard_normal((VOCAB, WIDTH)).astype(np.float32)
    ops = [
        ("embed", dict(out=0, table=table(), scale=1.0)),
        ("take_rows", dict(x=0, out=1)),
        (
            "norm",
            dict(x=1, add=None, kind="rms", weight=WEIGHT, bias=None, eps=1e-5, out=2, acts={}),
        ),
        (
            "matmul",
            dict(
                x=2,
                act="f32",
                weights=[packed(out[:30]), packed(out[30:])],
                bias=None,
                gate=None,
                out=-1,
                offset=0,
            ),
        ),
        ("scale", dict(x=-1, factor=2.0, out=-1)),
    ]
    step = build(ops, [WIDTH] * 3, num_threads=threads, hidden=2)
    found = step.step(batch(range(20), wanted), memory())
    hidden = oracle.rms_norm(TABLE[wanted], WEIGHT, 1e-5).reshape(-1, WIDTH)
    assert found.shape == (len(wanted), VOCAB) and found.dtype == np.float32
    assert not len(wanted) or np.abs(found - 2 * hidden @ out.T.astype(np.float64)).max() <= 1e-4
    assert (
        np.abs(step.step(batch(range(20), wanted), memory(), output="hidden") - hidden).max(
            initial=0
        )
        <= 1e-5
    )


def test_a_program_without_logits_has_the_hidden_rows_that_are_marked():
    ops = [
        ("embed", dict(out=0, table=table(), scale=1.0)),
        ("take_rows", dict(x=0, out=1)),
        (
            "norm",
            dict(x=1, add=None, kind="rms", weight=WEIGHT, bias=None, eps=1e-5, out=2, acts={}),
        ),
    ]
    step = build(ops, [WIDTH] * 3, hidden=2)
    assert (
        np.abs(
            step.step(batch([4, 5], [1]), memory(), output="hidden")
            - oracle.rms_norm(TABLE[[5]], WEIGHT, 1e-5)
        ).max()
        <= 1e-5
    )
    with pytest.raises(ConfigError):
        step.step(batch([4, 5], [1]), memory())


def test_hidden_rows_outlive_their_program():
    ops = [
        ("embed", dict(out=0, table=table(), scale=1.0)),
        ("take_rows", dict(x=0, out=1)),
        (
            "norm",
            dict(x=1, add=None, kind="rms", weight=WEIGHT, bias=None, eps=1e-5, out=2, acts={}),
        ),
    ]
    step = build(ops, [WIDTH] * 3, max_rows=4096, hidden=2)
    rows = step.step(batch([4, 5], [0, 1]), memory(), output="hidden")
    before = rows.copy()
    del step
    gc.collect()
    assert np.array_equal(rows, before)


def test_matmul_with_bias_offset_and_gate():
    a, b = (RNG.standard_normal((n, WIDTH)).astype(np.float32) for n in (20, 28))
    bias = RNG.standard_normal(48).astype(np.float32)
    ops = [
        (
            "matmul",
            dict(x=0, act="f32", weights=[packed(a)], bias=bias[:20], gate=None, out=1, offset=0),
        ),
        (
            "matmul",
            dict(x=0, act="f32", weights=[packed(b)], bias=bias[20:], gate=None, out=1, offset=20),
        ),
        (
            "matmul",
            dict(
                x=1,
                act="f32",
                weights=[packed(TABLE[:32]), packed(TABLE[8:40])],
                bias=None,
                gate="silu",
                out=2,
                offset=0,
            ),
        ),
    ]
    found, rows = after(ops, [WIDTH, 48, 32], 2)
    middle = rows.astype(np.float64) @ np.concatenate([a, b]).T + bias
    wanted = oracle.ACTIVATIONS["silu"](middle @ TABLE[:32].T) * (middle @ TABLE[8:40].T)
    assert np.abs(found - wanted).max() <= 1e-5 * np.abs(wanted).max()


NORM = dict(x=0, add=None, kind="rms", weight=WEIGHT, bias=None, eps=1e-5, out=1, acts={})
SHAPE = dict(q_heads=2, kv_heads=1, k_dim=8, v_dim=8, layer=0)
STORE = dict(
    x=0,
    rope=None,
    rope_dims=0,
    style="norm",
    q_norm=None,
    k_norm=None,
    eps=1e-6,
    q_scale=1.0,
    **SHAPE,
)


def test_hidden_rows_are_refused_where_the_slot_does_not_hold_the_wanted_ones():
    ops = [("embed", dict(out=0, table=table(), scale=1.0)), ("take_rows", dict(x=0, out=1))]
    for slot in (0, 2):
        with pytest.raises(ModelError, match=f"slot {slot}"):
            build(ops, [WIDTH] * 3, hidden=slot)
    with pytest.raises(ConfigError, match="hidden"):
        build(ops, [WIDTH] * 3).step(batch([4, 5], [1]), memory(), output="hidden")


@pytest.mark.parametrize(
    "op",
    [
        ("frobnicate", {}),
        ("norm", {**NORM, "x": 1}),
        ("norm", {**NORM, "x": 7}),
        ("norm", {**NORM, "x": -1}),
        ("norm", {**NORM, "x": "0"}),
        ("norm", {**NORM, "out": 9}),
        ("norm", {**NORM, "weight": WEIGHT[:5]}),
        ("norm", {**NORM, "weight": WEIGHT.astype(np.float64)}),
        ("norm", {**NORM, "kind": "rsm"}),
        ("norm", {**NORM, "eps": float("nan")}),
        ("norm", {**NORM, "add": 1}),
        ("norm", {**NORM, "extra": 1}),
        ("norm", {k: v for k, v in NORM.items() if k != "eps"}),
        ("norm", {**NORM, "acts": {"q8_32": 1}}),
        ("norm", {**NORM, "acts": {"q9": 1}}),
        ("norm", {**NORM, "acts": {"f32": 2}}),
        ("quantise", dict(x=0, acts={"q8_256": 1})),
        ("scale", dict(x=0, factor=float("inf"), out=1)),
        ("softcap", dict(x=0, cap=0.0, out=1)),
        ("activate", dict(x=0, kind="mish", out=1)),
        ("add", dict(x=0, y=2, out=1)),
        ("scale", dict(x=0, factor=1.0, out=-1)),
        ("take_rows", dict(x=0, out=0)),
        ("take_rows", dict(x=0, out=2)),
        ("matmul", dict(x=0, act="f32", weights=[], out=1)),
        ("matmul", dict(x=0, act="q8_32", weights=[packed(TABLE)], out=1)),
        ("matmul", dict(x=0, act="f32", weights=[packed(TABLE[:, :40])], out=1)),
        ("matmul", dict(x=0, act="f32", weights=[packed(TABLE)], out=2)),
        ("matmul", dict(x=0, act="f32", weights=[packed(TABLE)], out=0)),
        ("matmul", dict(x=0, act="f32", weights=[packed(TABLE)], out=1, gate="silu")),
        ("matmul", dict(x=0, act="f32", weights=[packed(TABLE)], out=1, offset=8)),
        ("matmul", dict(x=0, act="f32", weights=[TABLE], out=1)),
        ("matmul", dict(x=0, act="f32", weights=[packed(TABLE)], out=1, bias=WEIGHT[:4])),
        ("embed", dict(out=0, table=table(TABLE[:20]), scale=1.0)),
        ("embed", dict(out=2, table=table(), scale=1.0)),
        ("embed", dict(out=0, table=TABLE)),
        ("rope_table", dict(out=2, inv_freq=np.ones(20, np.float32))),
        ("rope_table", dict(out=1, inv_freq=np.ones(0, np.float32))),
        ("rope_store", {**STORE, "layer": 1}),
        ("rope_store", {**STORE, "kv_heads": 2}),
        ("rope_store", {**STORE, "k_dim": 16}),
        ("rope_store", {**STORE, "q_heads": 3, "kv_heads": 2}),
        ("rope_store", {**STORE, "q_heads": 0, "keep": False}),
        ("rope_store", {**STORE, "style": "gptj"}),
        ("rope_store", {**STORE, "rope": 1, "rope_dims": 8}),
        ("rope_store", {**STORE, "q_norm": WEIGHT}),
        ("attend", dict(x=0, out=0, **SHAPE)),
        ("attend", dict(x=0, out=1, window=-1, **SHAPE)),
        ("attend", dict(x=0, out=1, sinks=WEIGHT, **SHAPE)),
        ("attend", dict(x=0, out=1, **{**SHAPE, "q_heads": 0})),
        ("attend", dict(x=0, out=1, spans=True, window=4, **SHAPE)),
        ("attend", dict(x=0, out=1, behind=True, chunk=4, **SHAPE)),
        ("attend", dict(x=0, out=1, behind=True, spans=True, **SHAPE)),
        ("attend", dict(x=0, out=1, behind=True, causal=False, **SHAPE)),
        ("attend", dict(x=0, out=2, **SHAPE)),
    ],
    ids=lambda op: op[0],
)
def test_ops_that_cannot_run_are_refused_at_load(op):
    with pytest.raises((ModelError, ConfigError)) as caught:
        build(
            [
                (
                    "embed",
                    dict(
                        out=0,
                        table=table(
                            TABLE[:, :32].copy() if "rope" in op[0] or op[0] == "attend" else TABLE
                        ),
                        scale=1.0,
                    ),
                ),
                op,
            ],
            [WIDTH, WIDTH, 8],
            kv_layers=[(1, 8, 8)],
        )
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "more",
    [
        dict(max_rows=0),
        dict(max_rows=1 << 30),
        dict(vocab_size=0),
        dict(hidden_size=True),
        dict(num_threads=-1),
        dict(isa="z80"),
        dict(kv_layers=[(1, 8, 8)]),
    ],
)
def test_impossible_programs_are_refused(more):
    with pytest.raises(OxillamaError):
        step = build([("embed", dict(out=0, table=table(), scale=1.0))], [WIDTH], **more)
        step.run_until(batch([1]), memory(), 0)
    for slots in ([0], [-4], [1 << 31], ["8"], [2.0]):
        with pytest.raises(ModelError):
            build([("embed", dict(out=0, table=table(), scale=1.0))], slots)


@pytest.mark.parametrize(
    "make",
    [
        lambda: EmbeddingTable(TABLE.reshape(-1).view(np.uint8), "Q9", VOCAB, WIDTH),
        lambda: EmbeddingTable(b"1234", "F32", VOCAB, WIDTH),
        lambda: EmbeddingTable(TABLE.reshape(-1).view(np.uint8), "Q4_0", VOCAB, WIDTH),
        lambda: EmbeddingTable(b"", "F32", 0, 0),
        lambda: table().row(VOCAB),
    ],
)
def test_tables_that_do_not_fit_are_refused(make):
    with pytest.raises(ModelError):
        make()


GOOD = dict(tokens=[1, 2, 3], positions=[0, 1, 2], tables=[[0]], row_table=[0, 0, 0], wanted=[2])


@pytest.mark.parametrize(
    "change",
    [
        dict(tokens=[]),
        dict(tokens=[1, 2]),
        dict(tokens=[[1, 2, 3]]),
        dict(tokens=[1.5, 2, 3]),
        dict(tokens=["a", "b", "c"]),
        dict(tokens=[1, 2, 1 << 40]),
        dict(positions=[0, 1]),
        dict(positions=[0, 2, 1]),
        dict(positions=[0, 1, 1]),
        dict(positions=[-1, 0, 1]),
        dict(row_table=[0, 1, 0]),
        dict(row_table=[0, 0, -1]),
        dict(tables=[]),
        dict(tables=[[0], [0]], row_table=[0, 1, 0]),
        dict(wanted=[3]),
        dict(wanted=[-1]),
        dict(wanted=[1, 1]),
        dict(wanted=[2, 0]),
        dict(tables=[[0.5]]),
    ],
    ids=str,
)
def test_batches_that_make_no_sense_are_refused(change):
    Batch(**GOOD)
    with pytest.raises(ConfigError):
        Batch(**{**GOOD, **change})


@pytest.mark.parametrize(
    "change, error",
    [
        (dict(tokens=[1, 2, 64]), ConfigError),
        (dict(tokens=[1, -2, 3]), ConfigError),
        (dict(tables=[[]]), ContextError),
        (dict(tables=[[-1]]), ContextError),
        (dict(tables=[[10**6]]), ContextError),
        (dict(positions=[14, 15, 16]), ContextError),
        (dict(positions=[14, 15, 16], tables=[[0, -7]]), ContextError),
        (dict(positions=[30, 31, 32], tables=[[-1, 0, 1]]), ContextError),
        (dict(positions=[0, 40, 41], tables=[[0, 10**9, 1, 2]]), ContextError),
        (
            dict(tokens=[1] * 64, positions=range(64), tables=[[0, -7, 1, 2]], row_table=[0] * 64),
            ContextError,
        ),
    ],
    ids=str,
)
def test_batches_that_do_not_fit_the_program_are_refused(change, error):
    step = program()
    pages, _ = memory_for(step, 64)
    with pytest.raises(error):
        step.run_until(Batch(**{**GOOD, **change}), pages, 0)
    with pytest.raises(ConfigError):
        step.run_until(Batch(**GOOD), PageMemory([(2, 16, 8)]), 0)
    with pytest.raises(ConfigError):
        program(max_rows=2).run_until(Batch(**GOOD), pages, 0)


def test_slots_and_ops_outside_the_program_are_refused():
    step = program()
    pages, _ = memory_for(step, 64)
    for call in (
        lambda: step.slot(2, 1),
        lambda: step.slot(-2, 1),
        lambda: step.slot(0, 513),
        lambda: step.run_until(Batch(**GOOD), pages, 3),
        lambda: step.step(Batch(**GOOD), pages),
        lambda: step.step(Batch(**GOOD), pages, output="attention"),
    ):
        with pytest.raises(ConfigError):
            call()


def test_a_set_flag_stops_a_long_step_within_milliseconds():
    step = program(q_heads=8, kv_heads=2, k_dim=64, layers=30, num_threads=2, max_rows=4096)
    pages, ids = memory_for(step, 4096)
    rows = Batch(np.zeros(4096, int), np.arange(4096), [ids], np.zeros(4096, int), [])
    flag, late = CancelFlag(), []
    for _ in range(3):
        flag.clear()
        timer = threading.Timer(0.1, lambda: (late.append(time.perf_counter()), flag.set()))
        timer.start()
        with pytest.raises(Cancelled):
            step.run_until(rows, pages, len(step) - 1, cancel=flag)
        late[-1] = time.perf_counter() - late[-1]
        timer.join()
    assert min(late) < 0.05 and flag


def test_a_cancelled_step_leaves_a_program_that_works():
    step, flag = program(num_threads=2), CancelFlag()
    pages, ids = memory_for(step, 600)
    rows = Batch(np.arange(500) % 64, np.arange(500), [ids], np.zeros(500, int), [])
    step.run_until(rows, pages, 2)
    wanted = step.slot(1, 500)
    flag.set()
    with pytest.raises(Cancelled):
        step.run_until(rows, pages, 2, cancel=flag)
    flag.clear()
    step.run_until(rows, pages, 2, cancel=flag)
    assert not flag and np.array_equal(step.slot(1, 500), wanted)


def test_two_threads_may_not_step_one_program():
    step = program(q_heads=8, kv_heads=2, k_dim=64, layers=20, max_rows=2048)
    pages, ids = memory_for(step, 2048)
    rows = Batch(np.zeros(2048, int), np.arange(2048), [ids], np.zeros(2048, int), [])
    flag = CancelFlag()
    failed = []

    def run():
        try:
            step.run_until(rows, pages, len(step) - 1, cancel=flag)
        except Cancelled:
            failed.append("cancelled")

    thread = threading.Thread(target=run)
    thread.start()
    time.sleep(0.05)
    with pytest.raises(EngineError):
        step.run_until(Batch(**GOOD), pages, 0)
    flag.set()
    thread.join()
    assert failed == ["cancelled"]


def test_a_step_of_another_thread_leaves_a_profile_alone(monkeypatch):
    """Though it comes between two steps of the profile, and outlasts it."""
    step = program()
    pages, _ = memory_for(step, 64)
    clocks, zeros, diff = [], np.zeros, np.diff

    def kept(*shape):
        clocks.append(zeros(*shape))
        return clocks[-1]

    def in_between(times):
        before = clocks[0].copy()
        thread = threading.Thread(target=step.run_until, args=(Batch(**GOOD), pages, 2))
        thread.start()
        thread.join()
        assert np.array_equal(clocks[0], before)
        return diff(times)

    monkeypatch.setattr(np, "zeros", kept)
    monkeypatch.setattr(np, "diff", in_between)
    assert len(step.profile(Batch(**GOOD), pages)) == 3


def test_profile_names_every_op():
    step = program(layers=3)
    pages, _ = memory_for(step, 64)
    spent = step.profile(Batch(**GOOD), pages, repeat=3)
    assert [name for name, _ in spent] == ["embed"] + ["rope_store", "attend"] * 3 and all(
        us >= 0 for _, us in spent
    )
