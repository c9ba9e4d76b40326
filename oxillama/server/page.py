"""The page at `/`: static files of this package, nothing from elsewhere."""

from __future__ import annotations

from pathlib import Path

from starlette.responses import Response

from oxillama.server.calls import Call
from oxillama.server.errors import ApiError

_FOLDER = Path(__file__).with_name("static")
_KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
FILES = ("index.html", "page.css", "page.js", "icon.svg")


async def page(call: Call) -> Response:
    """GET / and its files"""
    name = call.params.get("file", "index.html")
    if name not in FILES:
        raise ApiError(404, f"path: {name[:60]!r} is no file of the page", code="not_found")
    path = _FOLDER / name
    return Response(
        path.read_bytes(),
        headers={"content-type": _KINDS[path.suffix], "cache-control": "no-cache"},
    )
