"""Fast Conformers: LFM2-Audio. And what other encoders have of a Conformer."""

from __future__ import annotations

import numpy as np

from oxillama.convert.encoder import AudioHyper, described_audio, encoder, spread
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
    kept=(
        *("conv_pw1.weight", "conv_pw2.weight", "conv_dw.weight"),
        *(f"a.conv1d.{number}.weight" for number in (0, 2, 3, 5, 6)),
    ),
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
                "norm_self_att": "ln1",
                "norm_conv": "norm_conv",
                "norm_out": "ln2",
                **{f"norm_feed_forward{at}": f"ffn_norm{end}" for at, end in ((1, ""), (2, "_1"))},
                **{
                    f"feed_forward{at}.linear{number}": f"ffn_{ours}{end}"
                    for at, end in ((1, ""), (2, "_1"))
                    for number, ours in ((1, "up"), (2, "down"))
                },
            },
            "a.blk.{b}.",
        ),
        **{
            f"{_LAYER}self_attn.pos_bias_{end}": f"a.blk.{{b}}.pos_bias_{end}" for end in "uv"
        },
        **{
            f"{_LAYER}conv.{theirs}.weight": Rule((f"a.blk.{{b}}.{ours}.weight",), matrix)
            for theirs, ours in (
                *(("pointwise_conv1", "conv_pw1"), ("pointwise_conv2", "conv_pw2")),
                ("depthwise_conv", "conv_dw"),
            )
        },
        **{
            f"{_LAYER}conv.{theirs}.bias": f"a.blk.{{b}}.{ours}.bias"
            for theirs, ours in (
                *(("pointwise_conv1", "conv_pw1"), ("pointwise_conv2", "conv_pw2")),
                ("depthwise_conv", "conv_dw"),
            )
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
    for name, *wanted in (
        ("feat_out", -1, hidden),
        ("subsampling", "dw_striding"),
        ("subsampling_factor", 8),
        ("causal_downsampling", False),
        ("reduction", None),
        ("reduction_factor", 1),
        ("self_attention_model", "rel_pos"),
        ("att_context_size", [-1, -1], [[-1, -1]]),
        ("xscaling", False),
        ("untie_biases", True),
        ("conv_norm_type", "batch_norm"),
        ("conv_context_size", None),
    ):
        h.must_be(name, *wanted)
    for name, *only in (
        ("sample_rate", 16000),
        ("normalize", "per_feature"),
        ("window_size", 0.025),
        ("window_stride", 0.01),
        ("window", "hann"),
        ("features", bands),
        ("n_fft", 512),
        ("log", True),
        ("frame_splicing", 1),
        ("pad_to", 0),
        ("pad_value", 0),
    ):
        h.sounds.must_be(name, *only)
