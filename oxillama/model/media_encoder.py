"""Encoders of images and of audio: an mmproj file (`general.architecture` clip) turns patches of an
image, or frames of a clip, into rows that a language model takes instead of embeddings.

    MediaRows --encoder tape--> a row each --groups--> neighbours side by side --projector
    tape--> features

An encoder is recorded like a language model, by a function for each `clip.projector_type`
(`encoders/`), but over rows that a batch brings in place of embeddings. Neighbouring rows are
joined between two tapes: the rows of the second are groups of rows of the first. An encoder that
joins rows more than once has a tape for each time.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast

import numpy as np

from oxillama._core.panels import PackedMatrix
from oxillama._core.pool import PageMemory
from oxillama._core.tape import Batch, Program
from oxillama.errors import ImageError, ModelError
from oxillama.gguf import GgufReader, file_kind
from oxillama.gguf.keys import Keys
from oxillama.model import encoders as _families  # noqa: F401  (importing it registers every family)
from oxillama.model.accounts import check_keys
from oxillama.model.audio_builder import AudioBuilder
from oxillama.model.audio_builder import encoders as audio_encoders
from oxillama.model.image_builder import ImageBuilder, Window
from oxillama.model.image_builder import encoders as image_encoders
from oxillama.model.load import LONGEST_STEP
from oxillama.model.lower import Tape, lower
from oxillama.model.media_builder import MediaBuilder
from oxillama.model.ops import Frame
from oxillama.model.reference import Difference, Reference, compare
from oxillama.model.tape_weights import tensors_of, with_weights
from oxillama.model.tensors import Tensor, unpacked

_PAGE = 16
_COMPARED = 512  # rows of a tape without attention that are compared with their definition
_JOINED = 1 << 21  # floats that are joined at once for a tape without attention


@dataclass(frozen=True, slots=True)
class Joined:
    """The rows of a tape that are made of those of the tape before. groups: (rows, group), which of
    those are side by side in each, -1 for zeros; given: float32 (more, width), further rows, which
    follow those of the tape before; columns: float32 (rows, columns), what comes after them in each
    row; rope, spans: as those of `MediaRows`.
    """

    groups: np.ndarray
    rope: np.ndarray | None = None
    spans: np.ndarray | None = None
    given: np.ndarray | None = None
    columns: np.ndarray | None = None


@dataclass(frozen=True, slots=True)
class MediaRows:
    """One image (or tile of one) or one window of a clip as the input of an encoder.

    rows: float32 (rows, columns), zeros in the row of a class token; tokens: int32 (rows,), -1, or
    0 for the class token; groups: (features, group), the rows of each feature, in the order of the
    features; rope: int32 (2, rows), row and column of a patch; spans: int32 (2, rows), the first
    row of a patch's window and the one after its last. between: the rows of tapes between the first
    one and the projector, of whose rows `groups` are then those of the last; given: further rows
    before the projector, as those of `Joined`.
    """

    rows: np.ndarray
    tokens: np.ndarray
    groups: np.ndarray
    rope: np.ndarray | None = None
    spans: np.ndarray | None = None
    between: tuple[Joined, ...] = ()
    given: np.ndarray | None = None

    @property
    def joined(self) -> tuple[Joined, ...]:
        """The rows of each tape after the first one."""
        return (*self.between, Joined(self.groups, given=self.given))


Medium = Literal["vision", "audio"]


@dataclass(slots=True, kw_only=True)
class MediaEncoder:
    """A loaded encoder; safe to call from any thread, one image or clip at a time.

    width: floats of a feature. kind: `clip.projector_type`. tapes: that of the encoder, those of
    further parts of it over joined rows, and that of the projector. group: rows of the first tape
    that are joined in one of the next. joints: for each tape but the last one, graphs' results side
    by side in its rows, whether these are joined by channel, and rows that each is cut into before.
    """

    kind: str
    reader: GgufReader = field(repr=False)
    keys: Keys = field(repr=False)
    root: Keys = field(repr=False)
    tapes: tuple[Tape, ...]
    width: int
    hidden: int
    group: int
    joints: tuple[tuple[int, bool, int], ...]
    columns: int
    spanned: bool
    _read: set[str] = field(repr=False)
    _programs: tuple[Program, ...] = field(repr=False)
    _lock: Any = field(default_factory=threading.Lock, repr=False)

    def check_keys(self) -> None:
        """Raise ModelError for a key of the file that neither the encoder nor its processor, which
        is made by now, has read.
        """
        check_keys(self.reader.metadata, "clip", self._read)

    def optional_vector(self, name: str, size: int) -> np.ndarray | None:
        """`vector`, or None if the file has no such tensor."""
        return self.vector(name, size) if name in self.reader.tensors else None

    def vector(self, name: str, size: int) -> np.ndarray:
        """A vector of the file that no tape reads, float32 (size,)."""
        return self.array(name, size)

    def array(self, name: str, *shape: int) -> np.ndarray:
        """A tensor of the file that no tape reads, float32. ModelError if it is missing, or has
        another shape than the one given.
        """
        info = self.reader.tensors.get(name)
        if info is None:
            raise ModelError(f"{name}: the file has no such tensor, {self.kind} needs it")
        if shape and tuple(info.shape) != shape:
            raise ModelError(f"{name}: file has {tuple(info.shape)}, {self.kind} needs {shape}")
        rows, width = int(np.prod(info.shape[:-1])), int(info.shape[-1])
        held = unpacked(self.reader, Tensor(name, info.type_name, (rows, width)))
        return held.reshape(tuple(info.shape))

    def grid(self, name: str) -> np.ndarray:
        """A table whose rows are a square: float32 (side, side, width)."""
        rows = self.array(name)
        side = round(len(rows) ** 0.5)
        return rows.reshape(side, side, -1)

    def encode(self, image: MediaRows) -> np.ndarray:
        """The features of an image, float32 (len(image.groups), width)."""
        with self._lock:
            rows = self._begun(image)
            for at, joined in enumerate(image.joined):
                rows = self._step(at + 1, rows, joined)
            return rows

    def _begun(self, image: MediaRows) -> np.ndarray:
        """The result of the first tape; a tape without attention runs over parts of the image."""
        program, count = self._programs[0], len(image.rows)
        if program.kv_layers or count <= program.max_rows:
            return _stepped(program, [(image.rows, image)])
        parts = (_some(image, at, program.max_rows) for at in range(0, count, program.max_rows))
        return _stepped(program, ((each.rows, each) for each in parts))

    def _step(self, at: int, rows: np.ndarray, joined: Joined) -> np.ndarray:
        """The result of tape number `at` over the rows of the one before; a tape without attention
        runs over parts of them.
        """
        program, count = self._programs[at], len(joined.groups)
        rows = self._cut(at - 1, rows, joined)
        if program.kv_layers or count <= program.max_rows:
            return _stepped(program, [(self._grouped(at - 1, rows, joined), joined)])
        ends = np.linspace(0, count, -(-count // program.max_rows) + 1).astype(int)
        parts = (_part(joined, *each) for each in zip(ends[:-1], ends[1:]))
        return _stepped(program, ((self._grouped(at - 1, rows, each), each) for each in parts))

    def _cut(self, at: int, rows: np.ndarray, joined: Joined) -> np.ndarray:
        """The rows that are joined after tape number `at`: its own, those that are given, and a row
        of zeros at the end if groups refer to one.
        """
        rows = rows.reshape(self.joints[at][2] * len(rows), -1)
        if joined.given is not None:
            rows = np.concatenate([rows, joined.given])
        if joined.groups.min() >= 0:
            return rows
        return np.concatenate([rows, np.zeros((1, rows.shape[1]), np.float32)])

    def _grouped(self, at: int, rows: np.ndarray, joined: Joined) -> np.ndarray:
        """Rows of the tape after number `at`: for each part, those of a group side by side."""
        parts, by_channel, _ = self.joints[at]
        made = rows[joined.groups].reshape(*joined.groups.shape, parts, -1)
        order = (0, 2, 3, 1) if by_channel else (0, 2, 1, 3)
        made = np.ascontiguousarray(made.transpose(order)).reshape(len(joined.groups), -1)
        return made if joined.columns is None else np.concatenate([made, joined.columns], axis=1)

    def diagnose(self, image: MediaRows) -> Iterator[Difference]:
        """Compares each op of every compiled tape with its numpy definition, over the rows of an
        image; over some of them where there is no attention.
        """
        made = np.empty(0)
        for at, (program, tape) in enumerate(zip(self._programs, self.tapes)):
            few = len(image.rows) if program.kv_layers else min(_COMPARED, program.max_rows)
            with self._lock:  # all programs have the same threads
                if at == 0:
                    some = _some(image, 0, few)
                    found = list(_compared(program, tape, self.reader, some.rows, some))
                    made = self._begun(image)
                else:
                    how = image.joined[at - 1]
                    piece = how if program.kv_layers else _part(how, 0, few)
                    rows = self._grouped(at - 1, self._cut(at - 1, made, how), piece)
                    found = list(_compared(program, tape, self.reader, rows, piece))
                    made = self._step(at, made, how)
            yield from found

    def reference(self, image: MediaRows) -> np.ndarray:
        """The same by the numpy definitions of all tapes."""
        rows = _meant(self.tapes[0], self.reader, image.rows, image)
        for at, joined in enumerate(image.joined):
            grouped = self._grouped(at, self._cut(at, rows, joined), joined)
            rows = _meant(self.tapes[at + 1], self.reader, grouped, joined)
        return rows


@dataclass(slots=True, kw_only=True)
class ImageEncoder(MediaEncoder):
    """An encoder of images. patch, image: pixels along a side; windows: how the tapes of a
    convolutional network are joined.
    """

    patch: int
    image: int
    windows: tuple[Window, ...]


@dataclass(slots=True, kw_only=True)
class AudioEncoder(MediaEncoder):
    """An encoder of audio. mels: numbers of a frame of the spectrogram."""

    mels: int


def _some(image: MediaRows, start: int, count: int) -> MediaRows:
    """Some rows of an image."""
    here = slice(start, start + count)
    return replace(image, rows=image.rows[here], tokens=image.tokens[here])


def _part(joined: Joined, start: int, end: int) -> Joined:
    """Some rows of a tape without attention."""
    columns = None if joined.columns is None else joined.columns[start:end]
    return Joined(joined.groups[start:end], columns=columns)


def _stepped(
    program: Program, parts: Iterable[tuple[np.ndarray, MediaRows | Joined]]
) -> np.ndarray:
    """What a tape leaves of rows in parts, in order; a state goes on from one to the next."""
    made, memory, start = list[np.ndarray](), None, 0
    for rows, image in parts:
        batch, memory = _batch(program, rows, image, memory, start)
        # rows are read in the threads' own time: no page outlives its step
        made.append(np.array(program.step(batch, memory, output="hidden")))
        start += len(rows)
    return made[0] if len(made) == 1 else np.concatenate(made)


def _batch(
    program: Program,
    rows: np.ndarray,
    image: MediaRows | Joined,
    memory: PageMemory | None = None,
    start: int = 0,
) -> tuple[Batch, PageMemory]:
    """One sequence of given rows, and pages for it; of its rows from `start` on, what those before
    them left in `memory`.
    """
    count = len(rows)
    if count > program.max_rows:
        raise ImageError(
            f"image: {count} patches, the encoder takes {program.max_rows}; wanted a smaller image"
        )
    if memory is None:
        memory = PageMemory(program.kv_layers, "f32", _PAGE, slot_layers=program.slot_layers)
    pages = -(-(start + count) // _PAGE)
    memory.ensure(pages)
    if memory.slot_layers:
        memory.ensure_slots(1)
    every = np.arange(start, start + count, dtype=np.int32)
    batch = Batch(
        _tokens(image, count),
        every,
        [np.arange(pages, dtype=np.int32)],
        np.zeros(count, np.int32),
        np.arange(count, dtype=np.int32),
        embeds=rows,
        rope=image.rope,
        spans=image.spans,
        slots=[0] if memory.slot_layers else None,
    )
    return batch, memory


def _tokens(image: MediaRows | Joined, count: int) -> np.ndarray:
    """-1 for each of `count` rows that are given, 0 for a class token."""
    return image.tokens if isinstance(image, MediaRows) else np.full(count, -1, np.int32)


def _compared(
    program: Program,
    tape: Tape,
    reader: GgufReader,
    rows: np.ndarray,
    image: MediaRows | Joined,
) -> Iterator[Difference]:
    batch, memory = _batch(program, rows, image)
    reference = Reference(tape, reader, kv_type="f32")
    frame = _frame(reference, rows, image)
    return compare(reference, (), program, batch, memory, frame=frame)


def _frame(reference: Reference, rows: np.ndarray, image: MediaRows | Joined) -> Frame:
    frame = reference.frame([-1] * len(rows))
    frame.embeds, frame.rope, frame.spans = rows, image.rope, image.spans
    frame.tokens = _tokens(image, len(rows))
    return frame


def _meant(
    tape: Tape, reader: GgufReader, rows: np.ndarray, image: MediaRows | Joined
) -> np.ndarray:
    reference = Reference(tape, reader, kv_type="f32")
    frame = _frame(reference, rows, image)
    for _ in reference.steps(frame):
        pass
    # the rows of the embedding are read before the output, which nothing writes
    return frame.slots[tape.embedding]


def media_of_file(metadata: Mapping[str, Any]) -> tuple[Medium, ...]:
    """What an mmproj file encodes. llama.cpp writes nothing about images into one of audio alone;
    old files of images say nothing at all.
    """
    root = Keys(metadata, "clip")
    audio = root.flag("has_audio_encoder", default=False)
    vision = root.flag("has_vision_encoder", default=not audio)
    return (*(("vision",) if vision else ()), *(("audio",) if audio else ()))


def encoder_kind(metadata: Mapping[str, Any], medium: Medium) -> str:
    """The `clip.projector_type` of the encoder of a medium; a file with encoders of several media
    says it of each, or of all.
    """
    root = Keys(metadata, "clip")
    whole = root.text("projector_type", default="")
    default = {"default": "mlp"} if medium == "vision" else {}
    return whole or root.text(f"{medium}.projector_type", **default)


def record_encoder(reader: GgufReader, medium: Medium = "vision") -> list[MediaBuilder]:
    """The parts of the encoder of a medium, its projector the last, as an mmproj file has them
    recorded; ModelError for another file, an unknown kind, or one that lacks or exceeds something.
    No weight is read.
    """
    found = reader.metadata.get("general.architecture")
    if not isinstance(found, str) or found != "clip":
        raise ModelError(
            f"general.architecture: found {found!r:.60}, wanted 'clip', an mmproj file: this is "
            f"{file_kind(reader.metadata)}"
        )
    kind = reader.metadata.get("general.type", "mmproj")
    if not isinstance(kind, str) or kind not in (
        "mmproj",
        "model",
    ):  # older files may call themselves models
        raise ModelError(f"general.type: found {kind!r:.60}, wanted 'mmproj'")
    root = Keys(reader.metadata, "clip")
    if root.flag("has_text_encoder", default=False):
        raise ModelError(
            "clip.has_text_encoder: found True, wanted False: images and audio alone are encoded"
        )
    media = media_of_file(reader.metadata)
    if medium not in media:
        raise ModelError(f"clip.has_{medium}_encoder: found False, wanted True")
    kind, known = encoder_kind(reader.metadata, medium), recorders(medium)
    if kind not in known:
        raise ModelError(
            f"clip.projector_type: found {kind!r:.60}, wanted one of {', '.join(sorted(known))}"
        )
    body: MediaBuilder = _BUILDERS[medium](reader, kind)
    body.read |= {f"clip.{key}" for key in _SAID}
    if len(media) > 1:
        # the encoder of the other medium has its own turn, if it is of a kind that runs
        other = "audio" if medium == "vision" else "vision"
        body.read |= {key for key in reader.metadata if key.startswith(f"clip.{other}.")}
        of_audio = {name for name in reader.tensors if name.startswith(("a.", "mm.a."))}
        body.used |= of_audio if other == "audio" else reader.tensors.keys() - of_audio
    with body.complete():
        known[kind](body)
    parts = [body]
    while isinstance(parts[-1].projection, MediaBuilder):
        parts.append(parts[-1].projection)
    if len(parts) < 2 or any(part.embedding is None for part in parts):
        raise ModelError(f"{kind}: the encoder recorded no projector")
    unused = [name for name in reader.tensors if name not in body.used]
    if unused:
        raise ModelError(
            f"{unused[0]}: {kind} has no use for this tensor ({len(unused)} such in the file)"
        )
    check_keys(reader.metadata, "clip", body.read | {f"clip.{key}" for key in _OF_IMAGES})
    return parts


def recorders(medium: Medium) -> Mapping[str, Any]:
    """The kinds of encoders of a medium that run."""
    return image_encoders() if medium == "vision" else audio_encoders()


def load_encoder(reader: GgufReader, *, num_threads: int = 0) -> ImageEncoder:
    """Record, lower and pack the image encoder of an mmproj file; ModelError for another file, or
    an unknown kind.
    """
    body, common = _loaded(reader, "vision", num_threads)
    body = cast(ImageBuilder, body)
    return ImageEncoder(**common, patch=body.patch, image=body.image, windows=tuple(body.windows))


def load_audio_encoder(reader: GgufReader, *, num_threads: int = 0) -> AudioEncoder:
    """The same of its audio encoder."""
    body, common = _loaded(reader, "audio", num_threads)
    return AudioEncoder(**common, mels=cast(AudioBuilder, body).mels)


def _loaded(
    reader: GgufReader, medium: Medium, num_threads: int
) -> tuple[MediaBuilder, dict[str, Any]]:
    """The builder of an encoder's first tape, and the fields of every `MediaEncoder`."""
    parts = record_encoder(reader, medium)
    body = parts[0]
    tapes = [lower(part, None) for part in parts]
    tensors = tensors_of([op for tape in tapes for op in tape.ops])
    weights = {
        key: PackedMatrix(
            each.blocks(reader).reshape(-1).data,
            each.format,
            each.shape[0],
            each.shape[1],
            num_threads,
        )
        for key, each in tensors.items()
    }
    programs: list[Program] = []
    for part, tape in zip(parts, tapes):
        rows = _most_rows(tape, min(part.most or LONGEST_STEP, LONGEST_STEP))
        beside = programs[0] if programs else None
        programs.append(_program(part, tape, weights, rows, num_threads, beside))
    return body, {
        "kind": body.kind,
        "reader": reader,
        "keys": body.keys,
        "root": body.root,
        "tapes": tuple(tapes),
        "width": tapes[-1].width,
        "hidden": body.hidden,
        "group": body.group,
        "joints": tuple((part.parts, part.by_channel, part.split) for part in parts[:-1]),
        "columns": max(_columns(tapes[0]), 1),
        "spanned": any(op.params.get("spans") for op in tapes[0].ops),
        "_read": body.read,
        "_programs": tuple(programs),
    }


def _most_rows(tape: Tape, most: int) -> int:
    """Rows of a step; fewer where they are wide and every one is made on its own."""
    if any("layer" in op.params for op in tape.ops):
        return most
    return min(most, max(64, _JOINED // max(_columns(tape), 1)))


def _columns(tape: Tape) -> int:
    """Columns of the rows that a batch brings."""
    return max(
        (op.params["start"] + op.params["count"] for op in tape.ops if op.name == "features"),
        default=0,
    )


_BUILDERS: dict[Medium, Any] = {"vision": ImageBuilder, "audio": AudioBuilder}
# Keys that describe the file, or repeat what its tensors say.
_SAID = (
    *("has_text_encoder", "has_vision_encoder", "has_audio_encoder", "has_llava_projector"),
    *("projector_type", "vision.projector_type", "use_gelu", "use_silu"),
    *("audio.projector_type", "audio.projection_dim", "audio.feed_forward_length"),
    *("vision.projection_dim", "vision.feed_forward_length", "vision.image_size"),
    *("vision.image_mean", "vision.image_std", "vision.image_crop_resolution"),
    *("vision.image_aspect_ratio", "vision.attention.layer_norm_epsilon"),
)
# Keys about images before they are cut into patches, which processors (`oxillama/vision`) read.
_OF_IMAGES = (
    *("vision.image_min_pixels", "vision.image_max_pixels", "vision.preproc_image_size"),
    *("vision.preproc_min_tiles", "vision.preproc_max_tiles", "vision.use_thumbnail"),
    *("vision.image_grid_pinpoints", "vision.mm_patch_merge_type"),
)


def _program(
    b: MediaBuilder,
    tape: Tape,
    weights: Mapping[Any, Any],
    max_rows: int,
    num_threads: int,
    beside: Program | None,
) -> Program:
    """beside: the program whose threads this one runs on, as one of an encoder runs at a time."""
    # An image, or a window of a clip, is one step, so keys and values of a layer are read before
    # the next one's are written: all layers share the pages of one.
    kinds = list(dict.fromkeys(state.dims for state in b.pages))
    ops = with_weights(b.reader, tape.ops, weights)
    for _, params in ops:
        if "layer" in params:
            params["layer"] = kinds.index(b.pages[params["layer"]].dims)
    return Program(
        ops,
        list(tape.slots),
        kv_layers=kinds,
        slot_layers=[state.shape for state in b.slots],
        hidden=tape.embedding,
        vocab_size=1,
        hidden_size=tape.width,
        max_rows=max_rows,
        num_threads=num_threads,
        beside=beside,
        files=b.reader.maps,
    )
