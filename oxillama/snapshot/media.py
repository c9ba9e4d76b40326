"""The images and the audio of a session in a snapshot: their positions, and their rows.

facts "images": [[start, rows, width, has positions, together], ...]      in order section "images":
of each, its rows float32 (rows, width), then its positions int32 (3, rows). Where positions are
fixed, a list ends with one more true; that of a clip of audio ends with "audio".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from oxillama.errors import SnapshotIncompatible
from oxillama.media.features import Kind, MediaFeatures
from oxillama.media.placement import PlacedMedia
from oxillama.snapshot.container import Buffer


def saved_media(media: Sequence[PlacedMedia]) -> tuple[list[list[Any]], bytes]:
    """(facts, section) of the images and audio of a session."""
    facts: list[list[Any]] = []
    parts: list[bytes] = []
    for each in media:
        made = each.features
        assert isinstance(made, MediaFeatures)  # a source is among the facts of its session
        fact = [each.start, *made.rows.shape, made.positions is not None, made.together]
        fact += [True] if made.fixed else []
        facts.append([*fact, made.kind] if made.kind != "image" else fact)
        parts.append(made.rows.astype("<f4").tobytes())
        if made.positions is not None:
            parts.append(made.positions.astype("<i4").tobytes())
    return facts, b"".join(parts)


def restored_media(facts: Any, held: Buffer, tokens: int, width: int) -> tuple[PlacedMedia, ...]:
    """The images and audio of a snapshot; SnapshotIncompatible if they do not fit the number of
    tokens, or their rows the width of the embedding, ValueError for impossible features.
    """
    if type(facts) is not list or not facts:
        raise SnapshotIncompatible(f"images: found {facts!r:.80}, wanted a list of images")
    data, at, end, made = memoryview(cast(Any, held)).cast("B"), 0, 0, []
    for each in facts:
        kinds = [type(part) for part in each] if type(each) is list else []
        kind: Kind = "image"
        if kinds and kinds[-1] is str and each[-1] == "audio":
            kind, each, kinds = "audio", each[:-1], kinds[:-1]
        fixed = kinds == [int, int, int, bool, bool, bool] and each[5] and each[3]
        if kinds != [int, int, int, bool, bool] and not fixed:
            raise SnapshotIncompatible(
                f"images: found {each!r:.80}, wanted start, rows, width, positions and together"
            )
        start, rows, columns, placed, together = each[:5]
        if start < end or rows < 1 or start + rows > tokens or columns != width:
            raise SnapshotIncompatible(
                f"images: found {rows} rows of {columns} at {start}, wanted rows of {width} from "
                f"{end} on within {tokens} tokens"
            )
        end = start + rows
        floats, places = 4 * rows * columns, 12 * rows * placed
        if at + floats + places > len(data):
            raise SnapshotIncompatible(
                f"images: found {len(data)} bytes, wanted at least {at + floats + places}"
            )
        values = np.frombuffer(data[at : at + floats], "<f4").astype(np.float32)
        if not np.isfinite(values).all():
            raise SnapshotIncompatible("images: found a row that is not finite, wanted numbers")
        at += floats
        positions: np.ndarray | None = None
        if placed:
            positions = np.frombuffer(data[at : at + places], "<i4").astype(np.int32)
            positions = positions.reshape(3, rows)
        at += places
        features = MediaFeatures(values.reshape(rows, columns), positions, together, fixed, kind)
        made.append(PlacedMedia(start, features))
    if at != len(data):
        raise SnapshotIncompatible(f"images: found {len(data)} bytes, wanted {at}")
    return tuple(made)
