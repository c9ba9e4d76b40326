"""Functions whose results are remembered, as many as fit a number of bytes: a pattern of some
kilobytes, which any client may send, can be an automaton of many megabytes.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable
from functools import wraps
from typing import TypeVar

T = TypeVar("T")


def remembered(
    most: int, weigh: Callable[..., int]
) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """A decorator as `functools.lru_cache`, for positional arguments alone. weigh(result, *args):
    the bytes that a result and its arguments take; those asked for last are kept while they take
    `most` at most, and the very last in any case.
    """

    def decorate(function: Callable[..., T]) -> Callable[..., T]:
        held: OrderedDict[tuple, tuple[T, int]] = OrderedDict()
        lock, nbytes = threading.Lock(), 0

        @wraps(function)
        def found(*args) -> T:
            nonlocal nbytes
            try:  # without the lock, which takes longer than all of this
                known = held[args]
                held.move_to_end(args)
                return known[0]
            except KeyError:  # it is not there, or another thread has dropped it meanwhile
                pass
            made = function(*args)
            size = weigh(made, *args)
            with lock:
                if args not in held:
                    held[args] = made, size
                    nbytes += size
                while nbytes > most and len(held) > 1:
                    nbytes -= held.popitem(last=False)[1][1]
            return made

        return found

    return decorate
