"""Row functions: near float64 by stated bounds, and bit-equal on every instruction set."""

import numpy as np
import pytest

from oxillama._core import vectors
from oxillama.errors import ConfigError
from tests.reference import rows_oracle as oracle

ISAS = vectors.instruction_sets()
SIZES = (1, 5, 16, 17, 63, 64, 65, 130, 576)


def ulps(found, wanted):
    return np.abs(found - wanted) / np.spacing(np.abs(wanted).astype(np.float32))


def same_everywhere(name, x, **more):
    """The result of one row function, after checking that every instruction set gives its bits."""
    first = vectors.apply(name, x, isa=ISAS[0], **more)
    for isa in ISAS[1:]:
        assert vectors.apply(name, x, isa=isa, **more).tobytes() == first.tobytes(), isa
    return first


def test_exp_stays_within_its_ulps():
    x = np.linspace(-87.3, 88.3, 200_001, dtype=np.float32)[None]
    assert ulps(same_everywhere("exp", x), np.exp(x.astype(np.float64))).max() <= 1.1


def test_exp_ends_are_zero_and_finite():
    found = same_everywhere("exp", np.array([[-np.inf, -1e30, -88, 0, 89, np.inf]], np.float32))[0]
    assert found[:4].tolist() == [0.0, 0.0, 0.0, 1.0] and np.isfinite(found[4:]).all()
    assert all(
        np.isnan(vectors.apply("exp", np.array([[np.nan]], np.float32), isa=isa)) for isa in ISAS
    )


@pytest.mark.parametrize(
    "name, more",
    [
        ("exp", {}),
        ("softcap", {"value": 30.0}),
        *(("activate", {"kind": kind}) for kind in vectors.ACTIVATIONS[1:]),
    ],
    ids=str,
)
def test_a_nan_of_any_bits_stays_one(name, more):
    x = np.array([[0xFFFFFFFF, 0x7FFFFFFF, 0x7FC00001, 0xFFCA0181, 0x7F800001]], np.uint32).view(
        np.float32
    )
    for isa in ISAS:
        assert np.isnan(vectors.apply(name, x, isa=isa, **more)).all(), isa


@pytest.mark.parametrize("kind", vectors.ACTIVATIONS[1:])
def test_activations_are_near_and_equal_everywhere(kind):
    x = np.concatenate(
        [
            np.linspace(-12, 12, 20_001),
            np.linspace(-0.7, 0.7, 5001),
            np.logspace(-30, 1, 301),
            [0.0],
        ]
    ).astype(np.float32)[None]
    found, wanted = (
        same_everywhere("activate", x, kind=kind),
        oracle.ACTIVATIONS[kind](x.astype(np.float64)),
    )
    assert (np.abs(found - wanted) <= 4e-7 * np.maximum(np.abs(x), np.abs(wanted))).all()
    ends = same_everywhere("activate", np.array([[-3e38, -200, 200]], np.float32), kind=kind)[0]
    assert (
        np.abs(
            ends
            - {
                "sigmoid": [0, 0, 1],
                "tanh": [-1, -1, 1],
                "relu2": [0, 0, 40000],
                "exp_excess": [np.float32(3e38), 199, 0],
                "exp": [0, 0, vectors.apply("exp", np.float32([[200]]))[0, 0]],
                "signed_root": np.sqrt(np.float32([3e38, 200, 200])) * [-1, -1, 1],
            }.get(kind, [0, 0, 200])
        ).max()
        < 1e-30
    )


def test_tanh_and_softcap_stay_within_their_ulps():
    x = np.concatenate([np.linspace(-9, 9, 20_001), np.logspace(-20, 0, 301)]).astype(np.float32)[
        None
    ]
    assert (
        ulps(same_everywhere("activate", x, kind="tanh"), np.tanh(x.astype(np.float64))).max() <= 2
    )
    assert (
        ulps(
            same_everywhere("softcap", x * 20, value=30.0),
            30 * np.tanh((x * np.float32(20)).astype(np.float64) / 30),
        ).max()
        <= 4
    )


@pytest.mark.parametrize("n", SIZES)
def test_norms_match_float64(n):
    rng = np.random.default_rng(n)
    x, w, b = (rng.standard_normal(shape).astype(np.float32) * 3 for shape in ((4, n), n, n))
    for found, wanted in (
        (same_everywhere("rms_norm", x, weight=w, eps=1e-5), oracle.rms_norm(x, w, 1e-5)),
        (
            same_everywhere("layer_norm", x, weight=w, bias=b, eps=1e-5),
            oracle.layer_norm(x, w, b, 1e-5),
        ),
    ):
        assert np.abs(found - wanted).max() <= 1e-6 * max(1.0, np.abs(wanted).max())


def test_layer_norm_survives_a_large_mean():
    x = (np.random.default_rng(0).standard_normal((2, 300)) + 1000).astype(np.float32)
    ones = np.ones(300, np.float32)
    wanted = oracle.layer_norm(x, ones, 0 * ones, 1e-5)
    assert (
        np.abs(same_everywhere("layer_norm", x, weight=ones, bias=0 * ones) - wanted).max() <= 1e-3
    )


@pytest.mark.parametrize("n", SIZES)
def test_plain_rows_are_what_numpy_says(n):
    rng = np.random.default_rng(n)
    x, y = rng.standard_normal((2, 3, n)).astype(np.float32)
    assert np.array_equal(same_everywhere("add", x, y=y), x + y)
    assert np.array_equal(same_everywhere("mul", x, y=y), x * y)
    assert np.array_equal(same_everywhere("scale", x, value=1.7), x * np.float32(1.7))
    assert np.array_equal(same_everywhere("halves", x), x.astype(np.float16))


def test_halves_round_as_ieee_says():
    bits = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
    bits = bits[np.isfinite(bits)]
    near = np.concatenate(
        [np.nextafter(bits, np.float32(s)) for s in (-np.inf, np.inf)]
        + [bits, np.float32([65519.9, 65520, 1e30, -1e30, 1e-8])]
    )
    near = near[None]
    with np.errstate(over="ignore"):
        assert np.array_equal(same_everywhere("halves", near), near.astype(np.float16))


@pytest.mark.parametrize("half", (1, 4, 8, 16, 40))
@pytest.mark.parametrize("style", ("norm", "neox"))
def test_rotation_turns_pairs_and_leaves_the_rest(half, style):
    rng = np.random.default_rng(half)
    x = rng.standard_normal((1, 2 * half + 6)).astype(np.float32)
    freq = rng.random(half).astype(np.float32)
    table = vectors.rope_angles(freq, [11])[0]
    found = same_everywhere(
        "rope_pairs" if style == "norm" else "rope_halves",
        x,
        weight=table[:half],
        bias=table[half:],
    )
    wanted = oracle.rotate(x[:, None], freq, [11], style, 2 * half)[:, 0]
    assert np.abs(found - wanted).max() <= 1e-6 and np.array_equal(
        found[:, 2 * half :], x[:, 2 * half :]
    )


def test_angles_are_float64_angles_rounded_once():
    freq = (10000.0 ** (-np.arange(64) / 64)).astype(np.float32)
    positions = [0, 1, 2, 95, 4095, 131071, 1_000_003]
    angle = np.array(positions)[:, None] * freq.astype(np.float64)
    wanted = np.concatenate([np.cos(angle), np.sin(angle)], axis=1).astype(np.float32)
    assert ulps(vectors.rope_angles(freq, positions), wanted.astype(np.float64)).max() <= 1
    assert (vectors.rope_angles(freq, positions) != wanted).mean() < 1e-3
    assert np.array_equal(
        vectors.rope_angles(freq, [7], scale=2.0),
        (
            2
            * np.float64(1)
            * np.concatenate(
                [np.cos(7 * freq.astype(np.float64)), np.sin(7 * freq.astype(np.float64))]
            )
        )[None].astype(np.float32),
    )


@pytest.mark.parametrize(
    "more",
    [
        dict(name="rms_norm", weight=np.ones(3, np.float32)),
        dict(name="add"),
        dict(name="nothing"),
        dict(name="activate", kind="relu7"),
        dict(name="exp", isa="mmx"),
        dict(name="rope_pairs"),
    ],
)
def test_what_does_not_fit_raises(more):
    with pytest.raises(ConfigError):
        vectors.apply(more.pop("name"), np.zeros((2, 4), np.float32), **more)
