"""Reasoning as one opaque text that a client keeps and sends back, for conversations of which the
server stores nothing. It is packed, not secret: a client of this server may read all reasoning.
"""

from __future__ import annotations

import base64
import hashlib

from oxillama.server.errors import bad

_MARK = "oxr1."
_DIGEST = 8  # bytes, so that what was cut or changed is told


def pack(text: str) -> str:
    """A text as an opaque one."""
    data = text.encode()
    return _MARK + base64.urlsafe_b64encode(_digest(data) + data).decode()


def unpack(packed: str, param: str) -> str:
    """The text of an opaque one; ApiError for one that `pack` did not make."""
    try:
        if not packed.startswith(_MARK):
            raise ValueError
        data = base64.b64decode(packed.removeprefix(_MARK), altchars=b"-_", validate=True)
        if _digest(data[_DIGEST:]) != data[:_DIGEST]:
            raise ValueError
        return data[_DIGEST:].decode()
    except ValueError:
        raise bad(param, packed, "what this server gave with the reasoning, unchanged") from None


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_DIGEST).digest()
