"""Bodies of `multipart/form-data` (RFC 7578), as they come with files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from oxillama.server.errors import ApiError, bad
from oxillama.server.schema import Schema

_MOST = 64  # parts of a body
_BOUNDARY = re.compile(r'boundary=(?:"([^"]{1,70})"|([^\s;,"]{1,70}))', re.IGNORECASE)
_NUMBER = re.compile(r"-?[0-9]{1,20}(\.[0-9]{1,20})?")
_NAME = re.compile(rb'[; ]name="([^"]{1,100})"', re.IGNORECASE)


def boundary_of(content_type: str) -> bytes:
    """What separates the parts; ApiError (415) for a body of another kind."""
    kind, _, more = content_type.partition(";")
    found = _BOUNDARY.search(more)
    if kind.strip().lower() != "multipart/form-data" or found is None:
        raise ApiError(
            415,
            f"content-type: found {content_type[:60]!r}, wanted multipart/form-data with a "
            "boundary",
        )
    return (found[1] or found[2]).encode()


def fields_of(body: bytes, boundary: bytes, schema: Schema) -> dict[str, Any]:
    """The fields of a body: texts, numbers where the schema has them, bytes where it says
    `format: binary`. ApiError (400) for a body that is not whole, or has a field twice.
    """
    parts = (b"\r\n" + body).split(b"\r\n--" + boundary)
    if len(parts) > _MOST:
        raise ApiError(400, f"body: found more than {_MOST} parts")
    if len(parts) < 2 or parts[0].strip() or not parts[-1].startswith(b"--"):
        raise ApiError(400, "body: found no whole form, wanted its parts between its boundary")
    made: dict[str, Any] = {}
    for part in parts[1:-1]:
        head, found, value = part.partition(b"\r\n\r\n")
        name = _NAME.search(head)
        if not found or name is None or b"form-data" not in head.lower():
            raise ApiError(400, "body: found a part without a name, wanted form-data")
        if b"content-transfer-encoding" in head.lower():
            raise ApiError(400, "body: found a content-transfer-encoding, wanted bytes as they are")
        field = name[1].decode("utf-8", "replace")
        if field in made:
            raise ApiError(400, f"{field}: found twice, wanted once", param=field)
        made[field] = _value(field, value, schema["properties"].get(field, {}))
    return made


def without_files(body: Mapping[str, Any]) -> dict[str, Any]:
    """A body with an empty text in place of each file, which schemas can check."""
    return {name: "" if isinstance(value, bytes) else value for name, value in body.items()}


def _value(name: str, value: bytes, schema: Schema) -> Any:
    if schema.get("format") == "binary":
        return value
    try:
        text = value.decode("utf-8")
        if schema.get("type") in ("number", "integer"):
            if not _NUMBER.fullmatch(text):
                raise ValueError(text)
            return float(text) if schema["type"] == "number" else int(text)
        if schema.get("type") == "boolean" and text in ("true", "false"):
            return text == "true"
        return text
    except ValueError:
        raise bad(name, value[:60], f"a {schema.get('type', 'text')}") from None
