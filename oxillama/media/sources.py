"""The bytes of a file of an image or of audio as callers name it: a `data:` URL, a `pathlib.Path`,
or, where a folder was allowed, a text that names a file in it. URLs of other places are never
fetched.
"""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, unquote_to_bytes, urlsplit
from urllib.request import url2pathname

from oxillama.errors import OxillamaError

_DATA_URL = re.compile(r"data:([^,;]*)((?:;[^,;]*)*),", re.IGNORECASE)
# bytes of the text of a URL in an error
_SHOWN = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class FileKind:
    """What a file is wanted to be. error: raised for another one; wanted: how errors name it;
    media_type: the beginning of a data URL's; folder_option: the option that allows a folder, ""
    for none; max_bytes: of a file; folder: where texts may name files, None for nowhere.
    """

    error: type[OxillamaError]
    wanted: str
    media_type: str
    folder_option: str
    max_bytes: int
    folder: Path | None = None

    def read(self, source: Any, name: str) -> tuple[bytes | None, str]:
        """(the bytes that a source of any type is or names, None for a type that names none; the
        name that errors have for it). `error` for what cannot be read or is too long.
        """
        if isinstance(source, str):
            given, source = source, self._named(source, name)
            if isinstance(source, Path):
                name = f"{name}: {given[:_SHOWN]}"
        elif isinstance(source, Path):
            name = f"{name}: {source}"
        if isinstance(source, Path):
            source = self.file_bytes(source, name=name)
        if not isinstance(source, (bytes, bytearray, memoryview)):
            return None, name
        held = bytes(source)
        if len(held) > self.max_bytes:
            raise self._too_long(len(held), name)
        return held, name

    def file_bytes(self, path: Path, *, name: str) -> bytes:
        """The bytes of a file, at most one more than the limit."""
        try:
            if not path.is_file():
                raise self.error(f"{name}: found no file, wanted {self.wanted}")
            with path.open("rb") as file:
                return file.read(self.max_bytes + 1)
        except OSError as error:
            raise self.error(f"{name}: {error.strerror or error}") from None

    def _named(self, text: str, name: str) -> bytes | Path:
        """The bytes of a data URL, or the file that a text names within the allowed folder."""
        if text[:5].lower() == "data:":
            return self._data_bytes(text, name)
        scheme = urlsplit(text[:4096]).scheme.lower()
        shown = f"{text[:_SHOWN]!r}"
        if scheme in ("http", "https"):
            raise self.error(
                f"{name}: found the URL {shown}, which is not fetched; wanted a data URL"
            )
        if self.folder is None:
            where = self.folder_option and (
                f" (files are read where `{self.folder_option}` allows it)"
            )
            raise self.error(f"{name}: found {shown}, wanted a data URL{where}")
        path = Path(url2pathname(urlsplit(text).path) if scheme == "file" else text)
        folder = self.folder.resolve()
        # on Windows a look at another computer's folder would sign in there
        elsewhere = path.drive and not path.is_relative_to(folder)
        found = folder if elsewhere else (folder / path).resolve()
        if elsewhere or not found.is_relative_to(folder):
            raise self.error(f"{name}: found {shown}, wanted a file below the allowed folder")
        return found

    def _data_bytes(self, url: str, name: str) -> bytes:
        head = _DATA_URL.match(url[:1024])
        if head is None:
            raise self.error(
                f"{name}: found {url[:_SHOWN]!r}, wanted data:{self.media_type}...;base64,..."
            )
        kind = head[1].lower()
        if kind and not kind.startswith(self.media_type):
            raise self.error(
                f"{name}: found a data URL of {kind[:_SHOWN]!r}, wanted {self.media_type}..."
            )
        size = len(url) - head.end()
        if size > 4 * self.max_bytes:
            raise self._too_long(size, name)
        body = url[head.end() :]
        if ";base64" not in head[2].lower():
            return unquote_to_bytes(body)
        try:
            return base64.b64decode("".join(unquote(body).split()), validate=True)
        except (binascii.Error, ValueError) as error:
            raise self.error(f"{name}: found a data URL that is not base64 ({error})") from None

    def _too_long(self, size: int, name: str) -> OxillamaError:
        return self.error(f"{name}: found {size} bytes, wanted at most {self.max_bytes}")
