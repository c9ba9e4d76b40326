"""Tables of decimal arithmetic: made once in a process, by whichever thread comes first."""

from decimal import MAX_EMAX, ROUND_UP, Context, Inexact, localcontext

import numpy as np
import pytest

from oxillama.audio.portable_math import cosines
from oxillama.audio.spectrogram import _filters, _triangles
from oxillama.model.encoders.gemma4_audio import _positions
from oxillama.model.waves import _fallen, circle


@pytest.mark.parametrize(
    "context",
    [
        Context(prec=5, rounding=ROUND_UP, traps=[]),
        Context(prec=28, traps=[Inexact]),
        Context(prec=5, Emin=-3, Emax=3, clamp=1, traps=[]),
        Context(prec=MAX_EMAX, rounding=ROUND_UP),
    ],
    ids=["rounded up", "inexact", "small", "long"],
)
@pytest.mark.parametrize(
    ("table", "sizes"),
    [
        (cosines, (400,)),
        (_filters, (80,)),
        (_triangles, (80, 512)),
        (_positions, (64, 20)),
        (_fallen, (64, 4)),
        (circle, (200,)),
    ],
)
def test_a_table_does_not_depend_on_what_its_first_caller_has_set(table, sizes, context):
    wanted = table(*sizes)
    with localcontext(context):
        made = table.__wrapped__(*sizes)
    if isinstance(wanted, list):
        assert made == wanted
    else:
        assert all(map(np.array_equal, made, wanted)) and len(made) == len(wanted)
