"""Fast Conformers: LFM2-Audio and Nemotron Nano VL. And what other encoders have of a Conformer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from oxillama.audio.spectrogram import NUMBERS, Levelled, levelled
from oxillama.convert.encoder import AudioHyper, Encoder, described_audio, encoder, spread
from oxillama.convert.encoders.audio import plane
from oxillama.convert.family import Hyper, Keys, Rule
from oxillama.convert.folder import ModelFolder
from oxillama.convert.safetensors import Tensor
from oxillama.errors import ConvertError

_EPS = 1e-5  # of a norm over a batch
BATCH_NORM = tuple(
    f".conv.batch_norm.{end}"
    for end in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
)
_LAYER = "conformer.layers.{b}."
_PLACES = ("conv_pw1.weight", "conv_pw2.weight", "conv_dw.weight")
_SUBSAMPLED = tuple(f"a.conv1d.{number}.weight" for number in (0, 2, 3, 5, 6))
# the layers' names of both that are alike
_NAMES = {
    "norm_self_att": "ln1",
    "norm_conv": "norm_conv",
    "norm_out": "ln2",
    **{f"norm_feed_forward{at}": f"ffn_norm{end}" for at, end in ((1, ""), (2, "_1"))},
    **{
        f"feed_forward{at}.linear{number}": f"ffn_{ours}{end}"
        for at, end in ((1, ""), (2, "_1"))
        for number, ours in ((1, "up"), (2, "down"))
    },
}
_CONVOLVED = (
    *(("pointwise_conv1", "conv_pw1"), ("pointwise_conv2", "conv_pw2")),
    ("depthwise_conv", "conv_dw"),
)


def matrix(x: np.ndarray, h: Hyper) -> np.ndarray:
    """A convolution of one place, or of one channel, without that axis."""
    axis = 1 if x.shape[1] == 1 else 2
    return x.squeeze(axis)


def batch_norms(h: AudioHyper, start: str) -> dict[str, np.ndarray]:
    """A norm over a batch as a factor and a summand. start: of the names of a layer's."""
    assert h.folder is not None
    tensors = h.folder.tensors

    def held(layer: int, end: str) -> np.ndarray:
        name = start.format(layer) + end
        found: Tensor | None = tensors.get(name, tensors.get("model." + name))
        if found is None:
            raise ConvertError(f"{h.label}: found no {name}, wanted that of each of its layers")
        return found.floats().astype(np.float64)

    made = {}
    for layer in range(h.layers):
        factor = held(layer, "weight") / np.sqrt(held(layer, "running_var") + _EPS)
        shift = held(layer, "bias") - held(layer, "running_mean") * factor
        for end, values in (("weight", factor), ("bias", shift)):
            made[f"a.blk.{layer}.conv_norm.{end}"] = values.astype(np.float32)
    return made


def _each_must_be(h: Hyper, **wanted: Any) -> None:
    """ConvertError where a value is there and another one than these."""
    for name, value in wanted.items():
        h.must_be(name, value)


class Lfm2AudioHyper(AudioHyper):
    """The values of its `encoder`."""

    part = "encoder"

    def __init__(self, folder: ModelFolder, defaults: dict) -> None:
        super().__init__(folder, defaults)
        said = self.whole.get("preprocessor", default={})
        self.sounds = Hyper(said, f"{self.whole.label}: preprocessor", folder)


def _batch_norms(h: AudioHyper) -> dict[str, np.ndarray]:
    return batch_norms(h, "conformer.layers.{}.conv.batch_norm.")


@encoder(
    "Lfm2AudioForConditionalGeneration",
    projector="lfm2a",
    parts=("conformer.", "audio_adapter.", "audio_embedding."),
    hyper=Lfm2AudioHyper,
    halves=(),
    kept=(*_PLACES, *_SUBSAMPLED),
    folded=BATCH_NORM,
    extra=_batch_norms,
    rules={
        "conformer.pre_encode.conv.{e}.weight": "a.conv1d.{e}.weight",
        "conformer.pre_encode.conv.{e}.bias": Rule(("a.conv1d.{e}.bias",), plane),
        "conformer.pre_encode.out.{w}": "a.pre_encode.out.{w}",
        **spread(
            _LAYER,
            {
                **{f"self_attn.linear_{part}": f"attn_{part}" for part in ("q", "k", "v", "out")},
                "self_attn.linear_pos": "linear_pos",
                **_NAMES,
            },
            "a.blk.{b}.",
        ),
        **{
            f"{_LAYER}self_attn.pos_bias_{end}": f"a.blk.{{b}}.pos_bias_{end}" for end in "uv"
        },
        **{
            f"{_LAYER}conv.{theirs}.weight": Rule((f"a.blk.{{b}}.{ours}.weight",), matrix)
            for theirs, ours in _CONVOLVED
        },
        **{
            f"{_LAYER}conv.{theirs}.bias": f"a.blk.{{b}}.{ours}.bias"
            for theirs, ours in _CONVOLVED
        },
        "audio_adapter.model.{e}.{w}": "mm.a.mlp.{e}.{w}",
        # what it speaks with, which is in files of llama.cpp's converter
        "audio_embedding.embedding.weight": "a.position_embd.weight",
        "audio_embedding.embedding_norm.weight": "a.position_embd_norm.weight",
        "audio_embedding.to_logits.weight": "a.embd_to_logits.weight",
    },
)  # fmt: skip
def lfm2a(h: Lfm2AudioHyper, k: Keys) -> None:
    """LFM2-Audio and LFM2.5-Audio (Liquid AI 2025)."""
    hidden, bands = h.integer("d_model"), h.integer("feat_in")
    inner = hidden * h.integer("ff_expansion_factor", default=4)
    described_audio(h, k, "lfm2a", bands=bands, hidden=hidden, inner=inner)
    h.must_be("feat_out", -1, hidden)
    h.must_be("att_context_size", [-1, -1], [[-1, -1]])
    _each_must_be(
        h,
        subsampling="dw_striding",
        subsampling_factor=8,
        causal_downsampling=False,
        reduction=None,
        reduction_factor=1,
        self_attention_model="rel_pos",
        xscaling=False,
        untie_biases=True,
        conv_norm_type="batch_norm",
        conv_context_size=None,
    )
    _each_must_be(
        h.sounds,
        sample_rate=16000,
        normalize="per_feature",
        window_size=0.025,
        window_stride=0.01,
        window="hann",
        features=bands,
        n_fft=512,
        log=True,
        frame_splicing=1,
        pad_to=0,
        pad_value=0,
    )


class NemotronSoundHyper(AudioHyper):
    """The values of its `sound_config`."""

    part = "sound_config"


def _four(x: np.ndarray, h: Hyper) -> np.ndarray:
    """A bias with the axes of what a convolution leaves."""
    return x.reshape(1, -1, 1, 1)


def _each(x: np.ndarray, h: Hyper) -> np.ndarray:
    """The taps of each channel, behind two axes of length 1."""
    return x.reshape(1, 1, len(x), -1)


_SOUND = "sound_encoder.encoder."
_EXTRACTED = {"a.mel_filters": "fb", "a.window": "window"}
_EXTRACTOR = _SOUND + "feature_extractor.featurizer."


def _spectrogram(h: AudioHyper) -> dict[str, np.ndarray]:
    """The bands and the taper of the spectrogram where the folder lacks them."""
    assert h.folder is not None
    made: Levelled = levelled(h.integer("num_mel_bins"))
    table = np.zeros((1, len(made.filters), NUMBERS), np.float32)
    for row, (first, weights) in zip(table[0], made.filters):
        row[first : first + len(weights)] = weights
    both = {"a.mel_filters": table, "a.window": made.taper.astype(np.float32)}
    return {
        name: both[name]
        for name, end in _EXTRACTED.items()
        if _EXTRACTOR + end not in h.folder.tensors
    }


def _summed(h: AudioHyper) -> Encoder:
    """Without the summands that config.json says there are none of: its code leaves them out."""
    ends = list(parakeet.folded)
    if not h.flag("convolution_bias", default=True):
        ends += [f".conv.{theirs}.bias" for theirs, _ in _CONVOLVED]
    if not h.flag("attention_bias"):
        ends += [f".self_attn.{part}_proj.bias" for part in "qkvo"]
        ends += [f".feed_forward{at}.linear{number}.bias" for at in (1, 2) for number in (1, 2)]
    if not h.flag("projection_bias", default=True):
        ends += [f"sound_projection.linear{number}.bias" for number in (1, 2)]
    return replace(parakeet, folded=tuple(ends))


@encoder(
    "NemotronH_Nano_VL_V2",
    projector="parakeet",
    parts=("sound_encoder.", "sound_projection."),
    hyper=NemotronSoundHyper,
    halves=(),
    kept=(*_PLACES, *_SUBSAMPLED),
    folded=(".conv.norm.num_batches_tracked",),
    variant=_summed,
    extra=_spectrogram,
    rules={
        **{_EXTRACTOR + end: name for name, end in _EXTRACTED.items()},
        _SOUND + "subsampling.layers.{e}.weight": "a.conv1d.{e}.weight",
        _SOUND + "subsampling.layers.{e}.bias": Rule(("a.conv1d.{e}.bias",), _four),
        _SOUND + "subsampling.linear.{w}": "a.pre_encode.out.{w}",
        **spread(
            _SOUND + "layers.{b}.",
            {
                **{f"self_attn.{part}_proj": f"attn_{part}" for part in "qkv"},
                "self_attn.o_proj": "attn_out",
                "self_attn.relative_k_proj": "linear_pos",
                "conv.norm": "conv_norm",
                **_NAMES,
            },
            "a.blk.{b}.",
        ),
        **{
            f"{_SOUND}layers.{{b}}.self_attn.bias_{end}": f"a.blk.{{b}}.pos_bias_{end}"
            for end in "uv"
        },
        **{
            f"{_SOUND}layers.{{b}}.conv.norm.running_{end}": f"a.blk.{{b}}.conv_norm_{end}"
            for end in ("mean", "var")
        },
        **{
            f"{_SOUND}layers.{{b}}.conv.{theirs}.weight": Rule(
                (f"a.blk.{{b}}.{ours}.weight",), _each if ours == "conv_dw" else matrix
            )
            for theirs, ours in _CONVOLVED
        },
        **{
            f"{_SOUND}layers.{{b}}.conv.{theirs}.bias": Rule((f"a.blk.{{b}}.{ours}.bias",), _four)
            if ours != "conv_dw"
            else f"a.blk.{{b}}.{ours}.bias"
            for theirs, ours in _CONVOLVED
        },
        "sound_projection.norm.weight": "mm.a.norm_pre.weight",
        "sound_projection.linear1.{w}": "mm.a.mlp.1.{w}",
        "sound_projection.linear2.{w}": "mm.a.mlp.2.{w}",
    },
)
def parakeet(h: NemotronSoundHyper, k: Keys) -> None:
    """What Nemotron Nano VL hears, where its folder has that."""
    described_audio(
        h,
        k,
        "parakeet",
        bands=h.integer("num_mel_bins"),
        hidden=h.integer("hidden_size"),
        inner=h.integer("intermediate_size"),
    )
    _each_must_be(
        h,
        hidden_act="silu",
        subsampling_conv_kernel_size=3,
        subsampling_conv_stride=2,
        scale_input=False,
        sampling_rate=16000,
    )
    k.u32("audio.subsampling_factor", h.integer("subsampling_factor", default=8))
    k.u32("audio.conv_kernel_size", h.integer("conv_kernel_size", default=9))
    _each_must_be(h.sounds, hop_length=160, n_fft=512, win_length=400, preemphasis=0.97)
