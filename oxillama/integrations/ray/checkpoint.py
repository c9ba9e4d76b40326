"""Finished rows of a dataset in a folder, so that a stopped job continues where it was.

    folder/about.json        the model's fingerprint, and all settings that affect answers
    folder/part-HASH.parquet the rows of one call: id, the question, the columns of the answer

A part is written completely or not at all (`durable`), so a reader finds only finished rows,
whatever was killed. A failed row is not stored; it is tried again. The folder belongs to the job
that made it: another model, other options, or another question under a known id is an error.
"""

from __future__ import annotations

import io
import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
from blake3 import blake3

from oxillama.durable import write_parts
from oxillama.errors import ConfigError, OxillamaError
from oxillama.integrations.ray.rows import ASKED, plain

_ABOUT = "about.json"
_ID, _ASKED = "__id__", "__asked__"
_KEPT = 8  # parts in memory at once


class Checkpoint:
    """The folder as one actor sees it: what was there when it began, and what it wrote since."""

    def __init__(
        self, folder: str | Path, *, about: Mapping[str, object], columns: Mapping[str, pa.DataType]
    ) -> None:
        """about: what every part of the folder must have been made under; ConfigError for a folder
        of another job.
        """
        self._folder, self._columns = Path(folder), dict(columns)
        self._rows: dict[str, tuple[str, str, int]] = {}  # id -> what was asked, part, row
        self._parts: OrderedDict[str, list[dict[str, Any]]] = OrderedDict()
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._agree(json.dumps(about, sort_keys=True))
            for path in sorted(self._folder.glob("part-*.parquet")):
                found = parquet.read_table(path, columns=[_ID, _ASKED]).to_pydict()
                for at, (name, asked) in enumerate(zip(found[_ID], found[_ASKED])):
                    self._rows[name] = (asked, path.name, at)
        except (OSError, pa.ArrowException) as error:
            raise ConfigError(f"checkpoint: {self._folder} cannot be used: {error}") from error

    def _agree(self, about: str) -> None:
        path = self._folder / _ABOUT
        if not path.exists():
            if any(self._folder.iterdir()):
                raise ConfigError(
                    f"checkpoint: {self._folder} holds other files, wanted an empty folder or one "
                    "of this job"
                )
            write_parts(path, [about.encode()])  # by every actor, with the same bytes
        found = path.read_text("utf-8")
        if found != about:
            was, now = json.loads(found), json.loads(about)
            names = [name for name in now if was.get(name) != now[name]]
            raise ConfigError(
                f"checkpoint: {self._folder} is of a job with another {', '.join(names)}, wanted "
                "the same one, or another folder"
            )

    def __len__(self) -> int:
        return len(self._rows)

    def find(self, key: object, row: Mapping[str, Any]) -> dict[str, Any] | None:
        """The answer that a row has already, None where it has none; ConfigError where another
        question stands under its id.
        """
        found = self._rows.get(_name(key))
        if found is None:
            return None
        asked, part, at = found
        if asked != _digest(row):
            raise ConfigError(
                f"checkpoint: row {key!r} asked something else when it was answered, wanted the "
                "same rows, or another folder"
            )
        return self._part(part)[at]

    def keep(
        self, keys: Sequence[object], rows: Sequence[Mapping[str, Any]], answers: Sequence[dict]
    ) -> None:
        """Write finished rows; they are there for good when this returns."""
        if not keys:
            return
        names, asked = [_name(key) for key in keys], [_digest(row) for row in rows]
        arrays = [
            pa.array(names, pa.string()),
            pa.array(asked, pa.string()),
            *(
                pa.array([answer[name] for answer in answers], kind)
                for name, kind in self._columns.items()
            ),
        ]
        made = pa.table(arrays, [_ID, _ASKED, *self._columns])
        out = io.BytesIO()
        parquet.write_table(made, out, compression="zstd")
        part = f"part-{blake3(' '.join(names).encode()).hexdigest()[:32]}.parquet"
        try:
            write_parts(self._folder / part, [out.getvalue()])
        except OSError as error:
            raise OxillamaError(f"checkpoint: {part} cannot be written: {error}") from error
        self._parts.pop(part, None)
        for at, (name, each) in enumerate(zip(names, asked)):
            self._rows[name] = (each, part, at)

    def _part(self, name: str) -> list[dict[str, Any]]:
        if name not in self._parts:
            table = parquet.read_table(self._folder / name, columns=list(self._columns))
            self._parts[name] = table.to_pylist()
            while len(self._parts) > _KEPT:
                self._parts.popitem(last=False)
        self._parts.move_to_end(name)
        return self._parts[name]


def _name(key: object) -> str:
    """An id as text: 1 and "1" are two."""
    return json.dumps(plain(key), sort_keys=True, default=str)


def _digest(row: Mapping[str, Any]) -> str:
    """What a row asks for, as a hash."""
    asked = {name: plain(row[name]) for name in ASKED if row.get(name) is not None}
    return blake3(json.dumps(asked, sort_keys=True).encode()).hexdigest()
