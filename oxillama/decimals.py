"""Decimal arithmetic of a number of digits, whatever the caller's thread has set: tables that are
made of it once have the same bits in every process.
"""

from contextlib import AbstractContextManager
from decimal import (
    MAX_EMAX,
    MIN_EMIN,
    ROUND_HALF_EVEN,
    Context,
    DivisionByZero,
    InvalidOperation,
    Overflow,
    localcontext,
)


def digits(count: int) -> AbstractContextManager[Context]:
    """A context manager: decimal arithmetic of so many digits, rounded half to even."""
    return localcontext(
        Context(
            prec=count,
            rounding=ROUND_HALF_EVEN,
            Emin=MIN_EMIN,
            Emax=MAX_EMAX,
            capitals=1,
            clamp=0,
            flags=[],
            traps=[InvalidOperation, DivisionByZero, Overflow],
        )
    )
