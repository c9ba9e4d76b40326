"""The parts of a converter for encoders of images and of audio (`mmproj-*.gguf`): hyper-parameters
of a `vision_config` or `audio_config`, a family's rules of names, and a registry by the class name
in transformers.

Rules are those of `family`. A name of the folder is looked up without `model.` before it and
without the family's prefixes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from oxillama.convert.family import Family, Hyper, Keys, Rule
from oxillama.convert.folder import ModelFolder
from oxillama.errors import ConvertError
from oxillama.model.media_encoder import Medium

LAYERS = ("num_hidden_layers", "vt_num_hidden_layers", "depth", "layers")


class MediaHyper(Hyper):
    """The values of a folder's `vision_config` or `audio_config`, with those that it may leave out
    as transformers has them.

    whole: config.json; text: the language model's values.
    """

    part = "vision_config"
    medium: ClassVar[Medium] = "vision"

    def __init__(self, folder: ModelFolder, defaults: Mapping[str, Any]) -> None:
        label = f"{folder.path}/config.json"
        self.whole = Hyper(folder.whole, label, folder)
        self.text = Hyper(folder.config, label, folder)
        config = self.whole.get(self.part, default={})
        if not isinstance(config, dict):
            raise ConvertError(f"{label}: {self.part}: found {config!r:.80}, wanted an object")
        given = {key: value for key, value in config.items() if value is not None}
        super().__init__({**defaults, **given}, f"{label}: {self.part}", folder)


class AudioHyper(MediaHyper):
    """Those of an `audio_config`. sounds: what the folder says of its feature extractor."""

    part, medium = "audio_config", "audio"

    def __init__(self, folder: ModelFolder, defaults: Mapping[str, Any]) -> None:
        super().__init__(folder, defaults)
        name, said = "preprocessor_config.json", folder.json("preprocessor_config.json")
        both = folder.json("processor_config.json").get("feature_extractor")
        if isinstance(both, dict):
            name, said = "processor_config.json: feature_extractor", {**said, **both}
        self.sounds = Hyper(said, f"{folder.path}/{name}", folder)

    @property
    def layers(self) -> int:
        return self.integer(
            *("encoder_layers", "conf_num_hidden_layers", "num_hidden_layers", "num_layers"),
            "n_layers",
        )

    @property
    def heads(self) -> int:
        return self.integer(
            "encoder_attention_heads",
            "conf_num_attention_heads",
            "num_attention_heads",
            "num_heads",
            "n_heads",
        )

    @property
    def kv_heads(self) -> int:
        return self.heads


class ImageHyper(MediaHyper):
    """Those of a `vision_config`. images: what the folder says of its image processor."""

    def __init__(self, folder: ModelFolder, defaults: Mapping[str, Any]) -> None:
        super().__init__(folder, defaults)
        name, said = "preprocessor_config.json", folder.json("preprocessor_config.json")
        if isinstance(said.get("media_proc_cfg"), dict):
            name, said = f"{name}: media_proc_cfg", {**said, **said["media_proc_cfg"]}
        both = folder.json("processor_config.json").get("image_processor")
        if isinstance(both, dict):
            name, said = "processor_config.json: image_processor", {**said, **both}
        self.images = Hyper(said, f"{folder.path}/{name}", folder)

    @property
    def layers(self) -> int:
        return self.integer(*LAYERS)

    @property
    def heads(self) -> int:
        return self.integer("num_attention_heads", "vt_num_attention_heads", "num_heads", "heads")

    @property
    def kv_heads(self) -> int:
        return self.heads

    def side(self, name: str) -> int:
        """Pixels of a side of a square, which may be given as two numbers."""
        value = self.get(name)
        if isinstance(value, (list, tuple)) and len(set(value)) == 1:
            return Hyper({name: value[0]}, self.label).integer(name)
        return self.integer(name)

    def channels(self, name: str) -> list[float]:
        """Three numbers of the image processor, one for each colour."""
        value = self.images.get(name)
        if not isinstance(value, list) or len(value) != 3:
            raise ConvertError(
                f"{self.images.label}: {name}: found {value!r:.80}, wanted three numbers"
            )
        return [Hyper({name: one}, self.images.label).number(name) for one in value]

    def size(self, name: str, *edges: str) -> Hyper:
        """The edges that the image processor says of a size, if any; ConvertError for others than
        those named. A number is a square.
        """
        found = self.images.get(name, default={})
        if isinstance(found, int) and not isinstance(found, bool) and "height" in edges:
            found = {"height": found, "width": found}
        if not isinstance(found, dict) or not {e for e in found if found[e] is not None} <= {
            *edges
        }:
            raise ConvertError(
                f"{self.images.label}: {name}: found {found!r:.80}, wanted {' and '.join(edges)}"
            )
        return Hyper(found, f"{self.images.label}: {name}")

    def edge(self, name: str, *edges: str) -> int | None:
        """The first of the edges that `size` has; None for none."""
        return self.size(name, *edges).integer(*edges, default=None)

    def must_have(self, name: str, found: Any, *wanted: Any) -> None:
        """ConvertError where a value of the image processor is there and is none that the file
        means.
        """
        if found is not None and found not in wanted:
            raise ConvertError(
                f"{self.images.label}: {name}: found {found!r:.80}, wanted "
                f"{' or '.join(map(repr, wanted))}"
            )


CONVOLVED = ("v.patch_embd.weight", "mm.patch_merger.weight")


@dataclass(frozen=True, slots=True)
class Encoder:
    """One family of encoders. hyper: of which medium its values are.

    parts: beginnings of the names of its tensors; every other tensor is left out, and so are those
    of `unused`. defaults: values of a `vision_config` that transformers has where it is silent.
    halves: tensors that are halves in a file of halves and float32 in every other; kept: ends of
    the names of those that are float32 in all. renamed: a tensor's name before the rules are looked
    up. layers: how many layers of the folder run. extra: further vectors of the file, float32 by
    name; folded: ends of the folder's names of what these are made of. variant: another family for
    some configurations of the same class.
    """

    projector: str
    family: Family
    parts: tuple[str, ...]
    hyper: type[MediaHyper] = ImageHyper
    unused: tuple[str, ...] = ()
    defaults: Mapping[str, Any] = field(default_factory=dict)
    halves: tuple[str, ...] = CONVOLVED
    kept: tuple[str, ...] = ()
    folded: tuple[str, ...] = ()
    renamed: Callable[[Any, str], str] = lambda h, name: name
    layers: Callable[[Any], int] = lambda h: h.layers
    extra: Callable[[Any], dict[str, Any]] = lambda h: {}
    variant: Callable[[Any], Encoder | None] = lambda h: None


# by the class in transformers and what they encode
ENCODERS: dict[str, dict[Medium, Encoder]] = {}


def encoder(
    *classes: str,
    projector: str,
    parts: tuple[str, ...],
    rules: Mapping[str, str | Rule],
    prefixes: tuple[tuple[str, str], ...] = (),
    **more: Any,
) -> Callable[[Callable[[Any, Keys], None]], Encoder]:
    """Make the decorated keys function the family of the named transformers classes."""

    def register(keys: Callable[[Any, Keys], None]) -> Encoder:
        made = Encoder(projector, Family("clip", rules, keys), parts, **more)
        if prefixes:
            plain = made.renamed

            def renamed(h: Any, name: str) -> str:
                for prefix, other in prefixes:
                    if name.startswith(prefix):
                        return plain(h, other + name.removeprefix(prefix))
                return plain(h, name)

            made = replace(made, renamed=renamed)
        for name in classes:
            held = {**ENCODERS.get(name, {}), made.hyper.medium: made}
            ENCODERS[name] = dict(sorted(held.items(), reverse=True))  # images first
        return made

    return register


def described(
    h: ImageHyper,
    k: Keys,
    projector: str,
    *,
    resample: int,
    image_size: int | None = None,
    hidden: int | None = None,
    inner: int | None = None,
    layers: int | None = None,
) -> None:
    """The keys of every encoder. resample: Pillow's number of the filter that images of the family
    are resized with. The others stand for values that have other names in the folder.
    """
    k.flag("has_vision_encoder", True)
    k.text("projector_type", projector)
    k.u32("vision.projection_dim", h.text.hidden)
    k.u32("vision.image_size", h.side("image_size") if image_size is None else image_size)
    k.u32("vision.patch_size", h.side("patch_size"))
    k.u32("vision.embedding_length", h.integer("hidden_size") if hidden is None else hidden)
    k.u32("vision.feed_forward_length", h.integer("intermediate_size") if inner is None else inner)
    k.u32("vision.block_count", h.layers if layers is None else layers)
    k.u32("vision.attention.head_count", h.heads)
    images = h.images
    for name in ("do_resize", "do_rescale"):
        h.must_have(name, images.get(name), True)
    h.must_have("resample", images.get("resample"), resample)
    factor = images.number("rescale_factor", default=None)
    if factor is not None and abs(factor * 255 - 1) > 1e-6:
        h.must_have("rescale_factor", factor, 1 / 255)
    normalised = images.flag("do_normalize", default=True)
    k.floats("vision.image_mean", h.channels("image_mean") if normalised else [0.0] * 3)
    k.floats("vision.image_std", h.channels("image_std") if normalised else [1.0] * 3)


def described_audio(
    h: AudioHyper,
    k: Keys,
    projector: str,
    *,
    bands: int,
    hidden: int,
    inner: int,
    eps: float = 1e-5,
    width: int | None = None,
) -> None:
    """The keys of every audio encoder. width: of a feature, where the language model's is not in
    the folder.
    """
    k.flag("has_audio_encoder", True)
    k.text("projector_type", projector)
    k.u32("audio.projection_dim", h.text.hidden if width is None else width)
    k.u32("audio.num_mel_bins", bands)
    k.u32("audio.embedding_length", hidden)
    k.u32("audio.feed_forward_length", inner)
    k.u32("audio.block_count", h.layers)
    k.u32("audio.attention.head_count", h.heads)
    k.f32("audio.attention.layer_norm_epsilon", eps)  # that of every norm of the encoder


def heard(h: AudioHyper, k: Keys, projector: str, *, width: int | None = None) -> None:
    """The keys of encoders that hear what Whisper's does; ConvertError for another feature
    extractor. width: as that of `described_audio`.
    """
    bands = h.integer("num_mel_bins")
    h.must_be("activation_function", "gelu")
    h.must_be("scale_embedding", False)
    described_audio(
        h,
        k,
        projector,
        bands=bands,
        hidden=h.integer("d_model", "hidden_size"),
        inner=h.integer("encoder_ffn_dim", "intermediate_size"),
        width=width,
    )
    for name, wanted in (
        ("feature_size", bands),
        ("sampling_rate", 16000),
        ("hop_length", 160),
        ("n_fft", 400),
        ("padding_value", 0),
    ):
        h.sounds.must_be(name, wanted)


def activation(h: ImageHyper, k: Keys, **meant: str) -> None:
    """The key of `hidden_act`; meant: the names that `gelu` or `silu` stands for."""
    h.must_be("hidden_act", *meant.values())
    for name, act in meant.items():
        if h.get("hidden_act") == act:
            k.flag(f"use_{name}", True)


def square(h: ImageHyper, name: str, side: int | None = None) -> None:
    """ConvertError where a size is a square of other sides; by default those of the encoder's
    image.
    """
    side = h.side("image_size") if side is None else side
    size = h.size(name, "height", "width")
    for edge in ("height", "width"):
        h.must_have(f"{name}: {edge}", size.integer(edge, default=None), side)


def limits(
    h: ImageHyper, k: Keys, least: int, most: int, *, frames: int = 1, merge: int | None = None
) -> None:
    """The limits of an image's pixels where they are not those of `least` to `most` features, which
    files without the keys mean. More than `most` features are never made. frames: how often an
    image counts; merge: patches along a side of a feature, by default `spatial_merge_size`.
    """
    area = (h.side("patch_size") * (merge or h.integer("spatial_merge_size"))) ** 2
    low, high = _pixels(h)
    if low is not None and -(-low // frames) != least * area:
        k.u32("vision.image_min_pixels", -(-low // frames))
    if high is not None and high // frames < most * area:
        k.u32("vision.image_max_pixels", high // frames)


def _pixels(h: ImageHyper) -> tuple[int | None, int | None]:
    """The fewest and the most pixels of an image that the image processor says."""
    least, most = ("shortest_edge", "min_pixels"), ("longest_edge", "max_pixels")
    size = h.size("size", *least, *most)
    low = h.images.integer("min_pixels", default=None)
    high = h.images.integer("max_pixels", default=None)
    return low or size.integer(*least, default=None), high or size.integer(*most, default=None)


def needed_limits(h: ImageHyper, k: Keys) -> int:
    """The keys of the limits of an image's pixels, which the files of some families must have; the
    upper one.
    """
    low, high = _pixels(h)
    for name, found in (("min_pixels", low), ("max_pixels", high)):
        if not found:
            raise ConvertError(f"{h.images.label}: {name}: found {found}, wanted an image's pixels")
        k.u32(f"vision.image_{name}", found)
    assert high is not None
    return high


def patched(h: ImageHyper) -> None:
    """ConvertError where the image processor cuts images otherwise than the encoder reads them."""
    h.must_have("patch_size", h.images.get("patch_size"), h.side("patch_size"))
    h.must_have("merge_size", h.images.get("merge_size"), h.integer("spatial_merge_size"))


def rotation(h: ImageHyper, k: Keys, usual: float = 10000.0) -> None:
    """The key of the base of the rotation of patches where it is not the usual one; ConvertError
    for a scaling.
    """
    rope = h.rope()
    if rope["rope_type"] in ("linear", "dynamic", "yarn", "longrope", "llama3"):
        raise ConvertError(
            f"{h.label}: rope_parameters: rope_type: found {rope['rope_type']!r}, wanted "
            "'default': a file has no place for it"
        )
    theta = float(rope.get("rope_theta", usual))
    if theta != usual:
        k.f32("vision.rope.freq_base", theta)


def spread(
    blocks: str, theirs: Mapping[str, str], target: str = "v.blk.{b}."
) -> dict[str, str | Rule]:
    """The rules of a layer's tensors, weights and biases, by the folder's names after `blocks`."""
    return {f"{blocks}{name}.{{w}}": f"{target}{ours}.{{w}}" for name, ours in theirs.items()}
