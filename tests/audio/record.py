"""Records what transformers makes of the clips of `made.py` into `transformers_audio.npz`:

    python -m tests.audio.record    (transformers 5.23 and torch on a CPU)

Spectrograms by its NumPy code, in 64 bits, and by its torch code, in 32; features of the made
weights, given the former. Ultravox is not in transformers: its encoder is that of Whisper there,
its projector is written out here after its published code.
"""

from pathlib import Path

import numpy as np
import torch
import transformers
from torch import nn

from tests.audio.made import (
    CHANNELS,
    FFN,
    GRANITE,
    HEADS,
    HIDDEN,
    LAYERS,
    LETTERS,
    MELS,
    POSITIONS,
    RATE,
    STACK,
    SUBSAMPLED,
    TAPS,
    TOKENS,
    clip,
    tensors_of,
)

WIDTH = 24
CLIPS = {"short": 0.503, "window": 2.0, "long": 5.117}
MORE = {kind: {"brief": 0.3, "longer": 9.753} for kind in ("qwen3a", "gemma3na", "gemma4a")}
MORE["dots3note_a"] = {"tail": 0.6405}


def extractor(bands: int, seconds: float, *, torchy: bool = False):
    made = transformers.WhisperFeatureExtractor(feature_size=bands, chunk_length=2)
    made.n_samples = round(seconds * RATE)
    if not torchy:
        made._torch_extract_fbank_features = made._np_extract_fbank_features
    return made


def mel_of(samples, seconds: float, **how):
    """(1, bands, frames) of samples padded to so many seconds, or "longest"."""
    made = extractor(MELS, seconds)
    made._torch_extract_fbank_features = lambda w, device: made._np_extract_fbank_features(
        np.asarray(w, np.float64), device
    )
    out = made(samples, sampling_rate=RATE, return_attention_mask=True, return_tensors="pt", **how)
    return out["input_features"].float(), out["attention_mask"]


def encoder_weights(kind: str, tensors: dict) -> dict:
    """The state of an encoder of transformers."""
    names = {
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_out": "self_attn.out_proj",
        "ln1": "self_attn_layer_norm",
        "ln2": "final_layer_norm",
        "ffn_up": "fc1",
        "ffn_down": "fc2",
    }
    waves = kind in ("qwen2.5o", "qwen3a")  # positions are made, not loaded
    post = "ln_post" if waves else "layer_norm"
    made = {}
    for name, value in tensors.items():
        part, _, end = name.removeprefix("a.").rpartition(".")
        held = torch.from_numpy(value)
        if part.startswith("conv2d."):
            made[f"conv2d{part[-1]}.{end}"] = held.reshape(-1) if end == "bias" else held
        elif part == "conv_out":
            made[f"conv_out.{end}"] = held
        elif part.startswith("conv1d."):
            made[f"conv{part[-1]}.{end}"] = held.reshape(-1) if end == "bias" else held
        elif part.startswith("blk."):
            _, index, rest = part.split(".")
            made[f"layers.{index}.{names[rest]}.{end}"] = held
        elif part == "post_ln":
            made[f"{post}.{end}"] = held
        elif part == "position_embd" and not waves:
            made["embed_positions.weight"] = held
        elif name.startswith("mm.a.fc") and kind == "qwen2.5o":
            made[f"proj.{end}"] = held
    return made


def common(kind: str) -> dict:
    return dict(
        d_model=HIDDEN,
        encoder_layers=LAYERS,
        encoder_attention_heads=HEADS,
        encoder_ffn_dim=FFN,
        num_mel_bins=MELS,
        max_source_positions=POSITIONS[kind],
        activation_function="gelu",
        attn_implementation="eager",
    )


def loaded(model: nn.Module, state: dict) -> nn.Module:
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected and all("audio_bos_eos" in name for name in missing), (
        missing,
        unexpected,
    )
    return model.eval()


def qwen2a(tensors, samples):
    from transformers.models.qwen2_audio import modeling_qwen2_audio as code

    config = transformers.Qwen2AudioConfig(
        audio_config=common("qwen2a"),
        text_config=dict(
            model_type="qwen2",
            hidden_size=WIDTH,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=2,
            intermediate_size=32,
            vocab_size=64,
        ),
        audio_token_id=5,
    )
    model = code.Qwen2AudioModel(config).eval()
    model.audio_tower = code.Qwen2AudioEncoder._from_config(config.audio_config)
    loaded(model.audio_tower, encoder_weights("qwen2a", tensors))
    model.multi_modal_projector.linear.weight.data = torch.from_numpy(tensors["mm.a.fc.weight"])
    model.multi_modal_projector.linear.bias.data = torch.from_numpy(tensors["mm.a.fc.bias"])
    made = []
    # a clip longer than a window is heard as its windows, under one spectrogram
    window = 2 * POSITIONS["qwen2a"]
    seconds = window * 160 / RATE
    count = -(-len(samples) // (window * 160))
    mel, mask = mel_of(samples, count * seconds)
    kept = []
    hook = model.multi_modal_projector.register_forward_hook(lambda *a: kept.append(a[-1]))
    for at in range(count):
        part, valid = (each[..., at * window : (at + 1) * window] for each in (mel, mask))
        length = int(valid.sum())
        features = ((length - 1) // 2 + 1 - 2) // 2 + 1
        if features < 1:
            continue
        ids = torch.full((1, features), 5)
        model(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            input_features=part,
            feature_attention_mask=valid,
        )
        made.append(kept.pop()[0, :features])
    hook.remove()
    return torch.cat(made)


def qwen25o(tensors, samples):
    from transformers.models.qwen2_5_omni import modeling_qwen2_5_omni as code

    config = (
        transformers.models.qwen2_5_omni.configuration_qwen2_5_omni.Qwen2_5OmniAudioEncoderConfig(
            **common("qwen2.5o"), n_window=100, output_dim=WIDTH
        )
    )
    model = code.Qwen2_5OmniAudioEncoder._from_config(config)
    loaded(model, encoder_weights("qwen2.5o", tensors))
    model.positional_embedding.positional_embedding = torch.from_numpy(
        tensors["a.position_embd.weight"]
    )
    mel, mask = mel_of(samples, 300.0)
    count = int(mask.sum())
    return model(mel[0][:, :count], feature_lens=torch.tensor([count])).last_hidden_state


def voxtral(tensors, samples):
    from transformers.models.voxtral import modeling_voxtral as code

    config = transformers.models.voxtral.configuration_voxtral.VoxtralEncoderConfig(
        hidden_size=HIDDEN,
        intermediate_size=FFN,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_mel_bins=MELS,
        max_source_positions=POSITIONS["voxtral"],
        attn_implementation="eager",
    )
    model = code.VoxtralEncoder._from_config(config)
    loaded(model, encoder_weights("voxtral", tensors))
    window = 2 * POSITIONS["voxtral"]
    mel, _ = mel_of(samples, 2.0, padding=True, truncation=False, pad_to_multiple_of=window * 160)
    mel = mel.reshape(MELS, -1, window).transpose(0, 1)
    hidden = model(mel).last_hidden_state.reshape(-1, HIDDEN * STACK["voxtral"])
    hidden = nn.functional.gelu(hidden @ torch.from_numpy(tensors["mm.a.mlp.1.weight"]).T)
    return hidden @ torch.from_numpy(tensors["mm.a.mlp.2.weight"]).T


def ultravox(tensors, samples):
    from transformers.models.whisper import modeling_whisper as code

    config = transformers.WhisperConfig(**common("ultravox"), decoder_layers=1)
    model = code.WhisperEncoder._from_config(config)
    loaded(model, encoder_weights("ultravox", tensors))
    window = 2 * POSITIONS["ultravox"]
    mel, mask = mel_of(samples, 2.0, padding="longest", truncation=False, pad_to_multiple_of=160)
    made = []
    for at in range(0, mel.shape[-1], window):
        part = mel[..., at : at + window]
        x = nn.functional.gelu(model.conv1(part))
        x = nn.functional.gelu(model.conv2(x)).permute(0, 2, 1)
        x = x + model.embed_positions.weight[: x.shape[1]]
        for layer in model.layers:
            x = layer(x, None)
            x = x[0] if isinstance(x, tuple) else x
        x = model.layer_norm(x)
        stack = STACK["ultravox"]
        x = nn.functional.pad(x, (0, 0, 0, -x.shape[1] % stack)).reshape(-1, HIDDEN * stack)

        def norm(x, name):
            x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
            return x * torch.from_numpy(tensors[name])

        x = norm(x, "mm.a.norm_pre.weight") @ torch.from_numpy(tensors["mm.a.mlp.1.weight"]).T
        first, second = x.chunk(2, dim=-1)
        x = norm(nn.functional.silu(second) * first, "mm.a.norm_mid.weight")
        made.append(x @ torch.from_numpy(tensors["mm.a.mlp.2.weight"]).T)
    return torch.cat(made)


def meralion(tensors, samples):
    """Not in transformers: its encoder is that of Whisper there, what follows is written out here
    after its published code. Samples are standardised in 64 bits, by the extractor in 32.
    """
    from torch.nn import functional
    from transformers.models.whisper import modeling_whisper as code

    config = transformers.WhisperConfig(**common("meralion"), decoder_layers=1)
    model = code.WhisperEncoder._from_config(config)
    loaded(model, encoder_weights("meralion", tensors))
    held = {name[5:]: torch.from_numpy(tensors[name]) for name in tensors if name[:5] == "mm.a."}

    def product(x, at):
        return x @ held[f"mlp.{at}.weight"].T + held[f"mlp.{at}.bias"]

    window, made = 2 * POSITIONS["meralion"] * 160, []
    for at in range(0, len(samples), window):
        part = samples[at : at + window]
        theirs, _ = mel_of(part, window / RATE, do_normalize=True)
        exact = part.astype(np.float64) - part.mean(dtype=np.float64)
        mel, _ = mel_of(exact / np.sqrt((exact**2).mean() + 1e-7), window / RATE)
        assert (mel - theirs).abs().max() < 5e-5, (mel - theirs).abs().max()
        x = model(mel).last_hidden_state
        x = functional.layer_norm(x, (HIDDEN,), held["norm_pre.weight"], held["norm_pre.bias"])
        x = functional.silu(product(x.reshape(-1, HIDDEN * STACK["meralion"]), 0))
        made.append(product(functional.silu(product(x, 1)) * product(x, 2), 3))
    return torch.cat(made)


def qwen3a(tensors, samples):
    from transformers.models.qwen3_asr import configuration_qwen3_asr as configuration
    from transformers.models.qwen3_asr import feature_extraction_qwen3_asr as extraction
    from transformers.models.qwen3_asr import modeling_qwen3_asr as code

    given = {**common("qwen3a"), "downsample_hidden_size": CHANNELS, "output_dim": WIDTH}
    del given["max_source_positions"]
    config = configuration.Qwen3ASREncoderConfig(**given)
    model = code.Qwen3ASREncoder._from_config(config)
    loaded(model, encoder_weights("qwen3a", tensors))
    model.positional_embedding.positional_embedding = torch.from_numpy(
        tensors["a.position_embd.weight"]
    )
    made = extraction.Qwen3ASRFeatureExtractor(feature_size=MELS)
    exact = extractor(MELS, 2.0)
    made._torch_extract_fbank_features = lambda w, device: exact._np_extract_fbank_features(
        np.asarray(w, np.float64), device
    )
    out = made(samples, sampling_rate=RATE, padding=True, return_attention_mask=True)
    mel = torch.as_tensor(out["input_features"]).float()
    mask = torch.as_tensor(out["attention_mask"])
    hidden = model(mel, mask).last_hidden_state
    for name, act in (("mm.a.mlp.1", nn.functional.gelu), ("mm.a.mlp.2", nn.Identity())):
        weight, bias = (torch.from_numpy(tensors[f"{name}.{end}"]) for end in ("weight", "bias"))
        hidden = act(hidden @ weight.T + bias)
    return hidden


def glma(tensors, samples):
    from transformers.models.glmasr import configuration_glmasr as configuration
    from transformers.models.glmasr import modeling_glmasr as code

    given = dict(
        hidden_size=HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_mel_bins=MELS,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.5,
        },
        attn_implementation="eager",
    )
    names = {
        **{f"attn_{part}": f"self_attn.{part}_proj" for part in "qkv"},
        "attn_out": "self_attn.o_proj",
        "ln1": "input_layernorm",
        "ln2": "post_attention_layernorm",
        "ffn_up": "mlp.fc1",
        "ffn_down": "mlp.fc2",
    }
    # its heads have adjacent pairs of the published weights half the rotated part apart
    width = HIDDEN // HEADS
    halves = [*range(0, width // 2, 2), *range(1, width // 2, 2), *range(width // 2, width)]
    state = {}
    for name, value in tensors.items():
        part, _, end = name.rpartition(".")
        held = torch.from_numpy(value)
        if part.startswith("a.conv1d."):
            state[f"conv{part[-1]}.{end}"] = held.reshape(-1) if end == "bias" else held
        elif part.startswith("a.blk."):
            _, _, index, rest = part.split(".")
            if rest in ("attn_q", "attn_k"):
                shape = held.shape
                held = held.reshape(HEADS, width, -1)[:, halves].reshape(shape)
            state[f"layers.{index}.{names[rest]}.{end}"] = held
        elif part == "mm.a.norm_pre":
            state[f"norm.{end}"] = held
    config = configuration.GlmAsrEncoderConfig(intermediate_size=FFN, **given)
    model = code.GlmAsrEncoder._from_config(config)
    model.load_state_dict(state)
    # which it takes for the width of the rows side by side
    config = configuration.GlmAsrConfig(
        audio_config=configuration.GlmAsrEncoderConfig(
            intermediate_size=STACK["glma"] * HIDDEN, **given
        ),
        text_config=dict(
            model_type="llama",
            hidden_size=WIDTH,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=2,
            intermediate_size=32,
            vocab_size=64,
        ),
    )
    whole = code.GlmAsrModel(config).eval()
    whole.audio_tower = model.eval()
    for at in "12":
        for end in ("weight", "bias"):
            held = torch.from_numpy(tensors[f"mm.a.mlp.{at}.{end}"])
            getattr(getattr(whole.multi_modal_projector, f"linear_{at}"), end).data = held
    window, made = 2 * POSITIONS["glma"] * 160, []
    for at in range(0, len(samples), window):
        mel, mask = mel_of(samples[at : at + window], window / RATE)
        made.append(whole.get_audio_features(mel, mask).pooler_output)
    return torch.cat(made)


def musicflamingo(tensors, samples):
    from transformers.models.audioflamingo3 import configuration_audioflamingo3 as configuration
    from transformers.models.audioflamingo3 import modeling_audioflamingo3 as code

    given = common("musicflamingo")
    names = {
        "d_model": "hidden_size",
        "encoder_layers": "num_hidden_layers",
        "encoder_attention_heads": "num_attention_heads",
        "encoder_ffn_dim": "intermediate_size",
    }
    config = configuration.AudioFlamingo3Config(
        audio_config=configuration.AudioFlamingo3EncoderConfig(
            **{names.get(name, name): value for name, value in given.items()}
        ),
        text_config=dict(
            model_type="qwen2",
            hidden_size=WIDTH,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=2,
            intermediate_size=32,
            vocab_size=64,
        ),
    )
    model = code.AudioFlamingo3Model(config).eval()
    model.audio_tower = code.AudioFlamingo3Encoder._from_config(config.audio_config)
    loaded(model.audio_tower, encoder_weights("musicflamingo", tensors))
    for at in "12":
        for end in ("weight", "bias"):
            held = torch.from_numpy(tensors[f"mm.a.mlp.{at}.{end}"])
            getattr(getattr(model.multi_modal_projector, f"linear_{at}"), end).data = held
    window, made = 2 * POSITIONS["musicflamingo"] * 160, []
    for at in range(0, len(samples), window):
        mel, mask = mel_of(samples[at : at + window], window / RATE)
        made.append(model.get_audio_features(mel, mask).pooler_output)
    return torch.cat(made)


def gemma4_mel(bands: int, samples, *, filled: int = 0):
    """float32 (frames, bands) of samples in 64 bits, and of zeros after them."""
    from transformers.models.gemma4 import feature_extraction_gemma4 as extraction

    extract = extraction.Gemma4AudioFeatureExtractor(feature_size=bands)
    held = np.zeros(max(len(samples), 160 * filled + 161), np.float64)
    held[: len(samples)] = samples
    made, _ = extract._extract_spectrogram(held, np.ones(len(held), int))
    return (made[:filled] if filled else made).astype(np.float32)


def gemma4a(tensors, samples):
    from transformers.models.gemma4 import configuration_gemma4 as configuration
    from transformers.models.gemma4 import feature_extraction_gemma4 as extraction
    from transformers.models.gemma4 import modeling_gemma4 as code

    outputs = len(tensors["a.pre_encode.out.bias"])
    config = configuration.Gemma4AudioConfig(
        hidden_size=HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        subsampling_conv_channels=list(SUBSAMPLED),
        output_proj_dims=outputs,
        attn_implementation="eager",
    )
    names = {
        "ffn_norm": "feed_forward1.pre_layer_norm",
        "ffn_up": "feed_forward1.ffw_layer_1",
        "ffn_down": "feed_forward1.ffw_layer_2",
        "ffn_post_norm": "feed_forward1.post_layer_norm",
        "attn_pre_norm": "norm_pre_attn",
        "attn_post_norm": "norm_post_attn",
        "conv_norm": "lconv1d.pre_layer_norm",
        "norm_conv": "lconv1d.conv_norm",
        "conv_pw1": "lconv1d.linear_start",
        "conv_dw": "lconv1d.depthwise_conv1d",
        "conv_pw2": "lconv1d.linear_end",
        "ln2": "norm_out",
        **{f"attn_{part}": f"self_attn.{part}_proj" for part in "qkv"},
        "attn_out": "self_attn.post",
        "attn_k_rel": "self_attn.relative_k_proj",
        "per_dim_scale": "self_attn.per_dim_scale",
        "a.input_projection": "subsample_conv_projection.input_proj_linear",
        "a.pre_encode.out": "output_proj",
        **{f"a.conv1d.{i}": f"subsample_conv_projection.layer{i}.conv" for i in (0, 1)},
        **{f"a.conv1d.{i}.norm": f"subsample_conv_projection.layer{i}.norm" for i in (0, 1)},
    }
    for part in ("norm", "up", "down", "post_norm"):
        names[f"ffn_{part}_1"] = names[f"ffn_{part}"].replace("1.", "2.", 1)
    state = {}
    limited = {name.rpartition(".")[0] for name in tensors if name.endswith("input_max")}
    for name, value in tensors.items():
        part, _, end = name.rpartition(".")
        held, where = torch.from_numpy(value), names.get(part)
        if name.startswith("mm."):
            continue
        if part.startswith("a.blk."):
            _, _, index, rest = part.split(".")
            where = f"layers.{index}.{names[rest]}"
            if rest == "per_dim_scale":  # llama.cpp's converter leaves its softplus
                where, end, held = where.rpartition(".")[0], rest, torch.log(torch.expm1(held))
            elif rest == "conv_dw":
                held = held[:, None]
            elif part in limited:
                where += ".linear" if end == "weight" else ""
                held = held if end == "weight" else held[0]
        state[f"{where}.{end}"] = held
    model = code.Gemma4AudioModel._from_config(config)
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected and all("output_min" in name for name in missing), (missing, unexpected)
    extract = extraction.Gemma4AudioFeatureExtractor(feature_size=MELS)
    made = extract([samples], return_tensors="pt")
    mask = made["input_features_mask"]
    mel = torch.from_numpy(gemma4_mel(MELS, samples, filled=mask.shape[1]))[None]
    # what it makes of them itself, in 32 bits
    assert (mel - made["input_features"])[mask].abs().max() < 5e-4
    out = model.eval()(mel * mask[..., None], mask)
    hidden = out.last_hidden_state[out.attention_mask]
    norm = code.Gemma4RMSNorm(outputs, eps=1e-6, with_scale=False)
    return norm(hidden) @ torch.from_numpy(tensors["mm.a.input_projection.weight"]).T


def gemma3n_mel(bands: int, samples):
    """float32 (frames, bands) of samples in 64 bits, in which the window is made, too."""
    from transformers.models.gemma3n import feature_extraction_gemma3n as extraction

    extract = extraction.Gemma3nAudioFeatureExtractor(feature_size=bands)
    own = extract([samples])  # what it makes of them itself, in 32 bits
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(extract.frame_length) / extract.frame_length)
    extract.window = window.astype(np.float32)
    held = np.zeros(-(-len(samples) // 128) * 128, np.float64)
    held[: len(samples)] = samples
    made, mask = extract._extract_spectrogram(held, (np.arange(len(held)) < len(samples)) * 1)
    assert mask.all()
    assert np.array_equal(own["input_features_mask"][0], mask)
    assert np.abs(own["input_features"][0] - made).max() < 5e-2
    return made.astype(np.float32)


def gemma3na(tensors, samples):
    from transformers.models.gemma3n import configuration_gemma3n as configuration
    from transformers.models.gemma3n import modeling_gemma3n as code

    config = configuration.Gemma3nAudioConfig(
        vocab_size=TOKENS,
        vocab_offset=64,
        input_feat_size=MELS,
        hidden_size=HIDDEN,
        conf_num_attention_heads=HEADS,
        conf_num_hidden_layers=LAYERS,
        sscp_conv_channel_size=SUBSAMPLED,
    )
    network = {
        "norm": "pre_layer_norm",
        "up": "ffw_layer_1",
        "down": "ffw_layer_2",
        "post_norm": "post_layer_norm",
    }
    names = {
        **{f"ffn_{ours}{end}": f"ffw_layer_{where}.{theirs}"
           for end, where in (("", "start"), ("_1", "end")) for ours, theirs in network.items()},
        **{f"attn_{part}": f"attention.attn.{part}_proj" for part in "qkv"},
        "attn_out": "attention.post",
        "ln1": "attention.pre_attn_norm",
        "ln2": "attention.post_norm",
        "linear_pos": "attention.attn.relative_position_embedding.pos_proj",
        "per_dim_scale": "attention.attn.per_dim_scale",
        "conv_norm": "lconv1d.pre_layer_norm",
        "norm_conv": "lconv1d.conv_norm",
        "conv_pw1": "lconv1d.linear_start",
        "conv_dw": "lconv1d.depthwise_conv1d",
        "conv_pw2": "lconv1d.linear_end",
        "layer_pre_norm": "norm",
    }  # fmt: skip
    others = {
        "a.pre_encode.out": "subsample_conv_projection.input_proj_linear",
        **{f"a.conv1d.{i}": f"subsample_conv_projection.conv_{i}.conv" for i in (0, 1)},
        **{f"a.conv1d.{i}.norm": f"subsample_conv_projection.conv_{i}.norm" for i in (0, 1)},
        "mm.a.embedding": "embedding",
        "mm.a.hard_emb_norm": "hard_embedding_norm",
        "mm.a.soft_emb_norm": "soft_embedding_norm",
        "mm.a.input_projection": "embedding_projection",
    }
    states = {"a.": {}, "mm": {}}
    for name, value in tensors.items():
        if name.startswith("a.blk."):
            _, _, index, rest = name.split(".", 3)
            part, dot, end = rest.partition(".")
            where = f"conformer.{index}.{names[part]}{dot}{end}"
        else:
            part, _, end = name.rpartition(".")
            where = f"{others[part]}.{end}"
        states[name[:2]][where] = torch.from_numpy(value)
    encoder = code.Gemma3nAudioEncoder._from_config(config).eval()
    encoder.load_state_dict(states["a."])
    text = configuration.Gemma3nTextConfig(hidden_size=WIDTH)
    embed = code.Gemma3nMultimodalEmbedder(config, text).eval()
    embed.load_state_dict(states["mm"])
    mel = torch.from_numpy(gemma3n_mel(MELS, samples))[None]
    heard = encoder(mel, torch.zeros(mel.shape[:2], dtype=torch.bool)).last_hidden_state
    rows = embed(inputs_embeds=heard)[0]
    end, filler = (embed(input_ids=torch.tensor([64 + at])) for at in (0, TOKENS - 1))
    return torch.cat([rows, filler.expand(188 - len(rows), -1), end])


def gemma4ua(tensors, samples):
    from transformers.models.gemma4_unified import configuration_gemma4_unified as configuration
    from transformers.models.gemma4_unified import feature_extraction_gemma4_unified as extraction
    from transformers.models.gemma4_unified import modeling_gemma4_unified as code

    weight = torch.from_numpy(tensors["mm.a.input_projection.weight"])
    audio = configuration.Gemma4UnifiedAudioConfig(audio_embed_dim=weight.shape[1])
    text = configuration.Gemma4UnifiedTextConfig(hidden_size=WIDTH)
    model = code.Gemma4UnifiedMultimodalEmbedder(audio, text)
    model.load_state_dict({"embedding_projection.weight": weight})
    extract = extraction.Gemma4UnifiedAudioFeatureExtractor()
    return model(extract(samples, return_tensors="pt")["input_features"])[0]


def dots3note_a(tensors, samples):
    from transformers.models.dots3_note import configuration_dots3_note as configuration
    from transformers.models.dots3_note import feature_extraction_dots3_note as extraction
    from transformers.models.dots3_note import modeling_dots3_note as code

    config = configuration.Dots3NoteAudioConfig(
        hidden_size=HIDDEN,
        intermediate_size=FFN,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        feature_size=MELS,
        downsample_hidden_size=CHANNELS,
        adapter_input_size=HIDDEN,
        adapter_out_dim=WIDTH,
        attn_implementation="eager",
    )
    names = {
        **{f"attn_{part}": f"self_attn.{part}_proj" for part in "qkv"},
        **{"attn_out": "self_attn.o_proj", "ffn_down": "mlp.down_proj"},
        **{"ln1": "input_layernorm", "ln2": "post_attention_layernorm"},
    }
    others = {
        **{f"a.conv2d.{at}": f"conv_stem.convs.{at - 1}" for at in (1, 2, 3)},
        **{"a.conv_out": "conv_stem.conv_out", "a.post_ln": "layer_norm"},
        **{"mm.a.norm_pre": "adapter.norm", "mm.a.mlp.1": "adapter.fc1"},
        "mm.a.mlp.3": "adapter.fc2",
    }
    state = {}
    for name, value in tensors.items():
        part, _, end = name.rpartition(".")
        held = torch.from_numpy(value)
        if part.endswith("ffn_up"):
            continue
        if part.endswith("ffn_gate"):
            held = torch.cat([held, torch.from_numpy(tensors[name.replace("gate", "up")])])
            state[f"layers.{part.split('.')[2]}.mlp.gate_up_proj.{end}"] = held
        elif part.startswith("a.blk."):
            _, _, index, rest = part.split(".")
            state[f"layers.{index}.{names[rest]}.{end}"] = held
        else:
            state[f"{others[part]}.{end}"] = held
    model = code.Dots3NoteAudioModel._from_config(config)
    model.load_state_dict(state)
    extract = extraction.Dots3NoteFeatureExtractor(feature_size=MELS)
    out = extract([samples], sampling_rate=RATE)
    mel, _ = mel_of(samples, 60.0)
    mel = mel[..., : out["input_features"].shape[-1]]
    # what it makes of them itself, in 32 bits
    assert (mel - out["input_features"]).abs().max() < 1e-4
    return model.eval()(mel, out["chunk_sample_lengths"]).pooler_output


def granite_mel(samples, bands):
    """(pairs, 2 bands) of samples in 64 bits: what torchaudio's MelSpectrogram makes, and its
    feature extractor of it, which needs torchaudio.
    """
    from transformers.audio_utils import mel_filter_bank

    held = torch.from_numpy(samples.astype(np.float64))
    how = dict(n_fft=512, hop_length=160, win_length=400, return_complex=True)
    window = torch.hann_window(400, dtype=torch.float64)
    power = torch.stft(held, window=window, pad_mode="reflect", **how).abs() ** 2
    filters = mel_filter_bank(257, bands, 0.0, 8000.0, RATE, norm=None, mel_scale="htk")
    mel = (power.T @ torch.from_numpy(filters)).clip(min=1e-10).log10()
    mel = torch.maximum(mel, mel.max() - 8.0) / 4 + 1
    return mel[: len(mel) // 2 * 2].reshape(-1, 2 * bands).float()


def granite_speech(tensors, samples):
    from transformers.models.granite_speech import configuration_granite_speech as configuration
    from transformers.models.granite_speech import modeling_granite_speech as code

    wide = tensors["a.proj_query"].shape[2]
    config = configuration.GraniteSpeechConfig(
        encoder_config=dict(
            input_dim=2 * MELS,
            num_layers=LAYERS,
            hidden_dim=HIDDEN,
            feedforward_mult=FFN // HIDDEN,
            num_heads=HEADS,
            output_dim=LETTERS,
            context_size=GRANITE["chunk_size"],
            max_pos_emb=GRANITE["max_pos_emb"],
            conv_kernel_size=GRANITE["conv_kernel_size"],
        ),
        projector_config=dict(
            model_type="blip_2_qformer",
            hidden_size=wide,
            num_hidden_layers=2,
            num_attention_heads=GRANITE["projector.head_count"],
            intermediate_size=FFN,
            encoder_hidden_size=HIDDEN,
            cross_attention_frequency=1,
            attn_implementation="eager",
        ),
        text_config=dict(model_type="granite", hidden_size=WIDTH),
        window_size=GRANITE["projector.window_size"],
        downsample_rate=GRANITE["projector.downsample_rate"],
    )
    names = {
        **{f"attn_{part}": f"attn.to_{part}" for part in ("q", "out")},
        "attn_rel_pos_emb": "attn.rel_pos_emb.weight",
        "ln1": "attn.pre_norm",
        "ln2": "post_norm",
        "norm_conv": "conv.norm",
        "conv_pw1": "conv.up_conv",
        "conv_dw": "conv.depth_conv.conv",
        "conv_norm": "conv.batch_norm",
        "conv_pw2": "conv.down_conv",
        **{
            f"ffn_{part}{end}": f"ff{number}.{other}"
            for end, number in (("", 1), ("_1", 2))
            for part, other in (("norm", "pre_norm"), ("up", "up_proj"), ("down", "down_proj"))
        },
        "a.input_projection": "input_linear",
        "a.enc_ctc_out": "out",
        "a.enc_ctc_out_mid": "out_mid",
        "a.proj_norm": "qformer.layernorm",
        "a.proj_linear": "linear",
        **{
            f"{kind}_attn_{part}": f"{where}.{other}"
            for kind, where in (("self", "attention"), ("cross", "crossattention"))
            for part, other in (
                ("q", "attention.query"),
                ("k", "attention.key"),
                ("v", "attention.value"),
                ("out", "output.dense"),
                ("norm", "output.LayerNorm"),
            )
        },
        "p_ffn_up": "intermediate_query.dense",
        "p_ffn_down": "output_query.dense",
        "p_ffn_norm": "output_query.LayerNorm",
    }
    encoder, projector, halves = {}, {}, {}
    for name, value in tensors.items():
        part, _, end = name.rpartition(".")
        held = torch.from_numpy(value)
        if name == "a.proj_query":
            projector["query"] = held
        elif part.startswith("a.proj_blk."):
            _, _, index, rest = part.split(".")
            rest = "p_" + rest if rest.startswith("ffn") else rest
            projector[f"qformer.encoder.layer.{index}.{names[rest]}.{end}"] = held
        elif part.startswith("a.proj_"):
            projector[f"{names[part]}.{end}"] = held
        elif part.startswith("a.blk."):
            index, rest = part.split(".", 3)[2], name.split(".", 3)[3].removesuffix("." + end)
            if rest in ("attn_k", "attn_v"):
                halves[index, rest] = held
                continue
            if rest == "attn_rel_pos_emb" or end == "attn_rel_pos_emb":
                encoder[f"layers.{index}.{names['attn_rel_pos_emb']}"] = held
                continue
            if rest == "conv_dw":
                held = held[:, None]
            elif rest in ("conv_pw1", "conv_pw2") and end == "weight":
                held = held[..., None]
            elif rest == "conv_norm" and end == "weight":
                held = held * (1 + 1e-5) ** 0.5  # of a variance of 1
            encoder[f"layers.{index}.{names[rest]}.{end}"] = held
        elif part.startswith("a."):
            encoder[f"{names[part]}.{end}"] = held
    for index in range(LAYERS):
        both = [halves[str(index), f"attn_{part}"] for part in "kv"]
        encoder[f"layers.{index}.attn.to_kv.weight"] = torch.cat(both)
    model = code.GraniteSpeechCTCEncoder._from_config(config.encoder_config)
    context = GRANITE["chunk_size"]
    at = torch.arange(context)
    model.attention_dists = at[:, None] - at[None] + GRANITE["max_pos_emb"]
    asked = code.GraniteSpeechEncoderProjector(config)
    for each, state in ((model, encoder), (asked, projector)):
        missing, unexpected = each.load_state_dict(state, strict=False)
        assert not unexpected and all("batch_norm" in name for name in missing), (
            missing,
            unexpected,
        )
        each.eval()
    hidden = model(granite_mel(samples, MELS)[None]).last_hidden_state
    return asked(hidden)[0]


def parakeet_mel(samples, bands, tensors=None):
    """(frames, bands) of samples in 64 bits, by the feature extractor of Parakeet, whose taper and
    bands may be those of a file, and the mask of its frames.
    """
    from transformers.audio_utils import mel_filter_bank

    extract = transformers.ParakeetFeatureExtractor(feature_size=bands)
    own, taper, mel = extract.mel_filters, torch.hann_window, extract._torch_extract_fbank_features
    how = dict(norm="slaney", mel_scale="slaney")
    exact = torch.from_numpy(mel_filter_bank(257, bands, 0.0, RATE / 2, RATE, **how).T.copy())
    assert (exact - own).abs().max() < 1e-7
    window = taper(400, periodic=False, dtype=torch.float64)
    if tensors is not None:
        exact, window = (
            torch.from_numpy(tensors[name].astype(np.float64))
            for name in ("a.mel_filters", "a.window")
        )
        own, taper = exact[0].float(), lambda size, **how: window.float()

    def of(waveform, device):
        """Of samples that are emphasised in 64 bits, too."""
        held = torch.from_numpy(samples.astype(np.float64))[None]
        held = torch.cat([held[:, :1], held[:, 1:] - 0.97 * held[:, :-1]], dim=1)
        return mel(held, device)

    made, window_of = [], torch.hann_window
    for filters, tapered, extracted in ((own, taper, mel), (exact, lambda size, **how: window, of)):
        extract.mel_filters, torch.hann_window = filters.reshape(bands, -1), tapered
        extract._torch_extract_fbank_features = extracted
        out = extract(samples, sampling_rate=RATE, return_tensors="pt")
        made.append(out["input_features"])
    torch.hann_window = window_of
    assert made[1].dtype == torch.float64
    assert (made[1] - made[0]).abs().max() < 2e-3, (made[1] - made[0]).abs().max()
    return made[1].float(), out["attention_mask"]


def fast_conformer(tensors, **config):
    """Parakeet's encoder, whose positions are made in 64 bits."""
    from transformers.models.parakeet import configuration_parakeet as configuration
    from transformers.models.parakeet import modeling_parakeet as code

    config = configuration.ParakeetEncoderConfig(
        hidden_size=HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        intermediate_size=FFN,
        conv_kernel_size=TAPS,
        subsampling_conv_channels=CHANNELS,
        num_mel_bins=MELS,
        scale_input=False,
        attn_implementation="eager",
        **config,
    )
    names = {
        **{f"attn_{part}": f"self_attn.{part}_proj" for part in "qkv"},
        "attn_out": "self_attn.o_proj",
        "linear_pos": "self_attn.relative_k_proj",
        **{f"pos_bias_{end}": f"self_attn.bias_{end}" for end in "uv"},
        "ln1": "norm_self_att",
        "ln2": "norm_out",
        "norm_conv": "norm_conv",
        **{f"ffn_{ours}{end}": f"feed_forward{at}.linear{number}"
           for end, at in (("", 1), ("_1", 2)) for ours, number in (("up", 1), ("down", 2))},
        **{f"ffn_norm{end}": f"norm_feed_forward{at}" for end, at in (("", 1), ("_1", 2))},
        **{f"conv_pw{at}": f"conv.pointwise_conv{at}" for at in (1, 2)},
        "conv_dw": "conv.depthwise_conv",
        "conv_norm": "conv.norm",
        "conv_norm_mean": "conv.norm.running_mean",
        "conv_norm_var": "conv.norm.running_var",
    }  # fmt: skip
    state = {}
    for name, value in tensors.items():
        held = torch.from_numpy(value)
        if name.startswith("a.blk."):
            index, rest = name.split(".", 3)[2:]
            part, dot, end = rest.partition(".")
            if part.startswith("conv_pw") and end == "weight":
                held = held[..., None]
            elif part == "conv_dw" and end == "weight":
                held = held.reshape(HIDDEN, 1, TAPS)
            elif end == "bias":
                held = held.reshape(-1)
            if rest == "conv_norm.weight" and f"a.blk.{index}.conv_norm_var" not in tensors:
                held = held * (1 + 1e-5) ** 0.5  # of a variance of 1
            state[f"layers.{index}.{names[part]}{dot}{end}"] = held
        elif name.startswith("a.conv1d."):
            held = held.reshape(-1) if name.endswith("bias") else held
            state[name.replace("a.conv1d", "subsampling.layers")] = held
        elif name.startswith("a.pre_encode.out"):
            state[name.replace("a.pre_encode.out", "subsampling.linear")] = held
    model = code.ParakeetEncoder._from_config(config)
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected and all(
        any(part in name for part in (".running_", "batches", "conv2.b")) for name in missing
    ), (missing, unexpected)
    half = HIDDEN // 2
    rates = 10000.0 ** (-torch.arange(half, dtype=torch.float64) / half)

    def positions(x):
        at = torch.arange(x.shape[1] - 1, -x.shape[1], -1, dtype=torch.float64)[:, None] * rates
        return torch.stack([at.sin(), at.cos()], dim=-1).reshape(1, len(at), -1).float()

    model.encode_positions.forward = positions
    return model.eval()


def lfm2a(tensors, samples):
    """Not in transformers: its encoder is that of Parakeet there, its spectrogram, too; but the
    frame of zeros at the end is one of the clip. The two products are written out here.
    """
    from torch.nn import functional

    hidden = fast_conformer(tensors)(parakeet_mel(samples, MELS)[0]).last_hidden_state[0]
    held = {name[5:]: torch.from_numpy(tensors[name]) for name in tensors if name[:5] == "mm.a."}
    hidden = functional.layer_norm(hidden, (HIDDEN,), held["mlp.0.weight"], held["mlp.0.bias"])
    hidden = functional.gelu(hidden @ held["mlp.1.weight"].T + held["mlp.1.bias"])
    return hidden @ held["mlp.3.weight"].T + held["mlp.3.bias"]


def parakeet(tensors, samples):
    """What Nemotron Nano VL hears, as `nemotron_h_omni` has it."""
    from transformers.models.nemotron_h_omni import modeling_nemotron_h_omni as code

    model = nn.Module()
    model.audio_tower = fast_conformer(tensors, attention_bias=False)
    for layer in model.audio_tower.layers:  # of which the file has none
        nn.init.zeros_(layer.conv.pointwise_conv2.bias)
    project = code.NemotronH_Omni_Reasoning_V3MultiModalProjector(HIDDEN, 40, WIDTH)
    for name, part in (("norm_pre", "layer_norm"), ("mlp.1", "linear_1"), ("mlp.2", "linear_2")):
        getattr(project, part).weight.data = torch.from_numpy(tensors[f"mm.a.{name}.weight"])
    model.embed_audio, model.device, model.dtype = project, torch.device("cpu"), torch.float32
    for name in ("device", "dtype"):
        assert getattr(model.audio_tower, name) == getattr(model, name)
    heard = code.NemotronH_Omni_Reasoning_V3.get_audio_features.__wrapped__
    mel, mask = parakeet_mel(samples, MELS, tensors)
    return heard(model, mel, mask).pooler_output


FAMILIES = {
    "qwen2a": qwen2a,
    "qwen2.5o": qwen25o,
    "ultravox": ultravox,
    "voxtral": voxtral,
    "meralion": meralion,
    "qwen3a": qwen3a,
    "glma": glma,
    "musicflamingo": musicflamingo,
    "gemma3na": gemma3na,
    "gemma4a": gemma4a,
    "gemma4ua": gemma4ua,
    "granite_speech": granite_speech,
    "lfm2a": lfm2a,
    "parakeet": parakeet,
    "dots3note_a": dots3note_a,
}


def main() -> None:
    held = {}
    for bands in (80, 128):
        samples = clip(1.0)
        for name, torchy in (("mel", False), ("torch", True)):
            made = extractor(bands, 2.0, torchy=torchy)
            held[f"{name}_{bands}"] = made(samples, sampling_rate=RATE)["input_features"][0].astype(
                np.float32
            )
    held["gemma4_mel"] = gemma4_mel(128, clip(1.0))
    held["gemma3n_mel"] = gemma3n_mel(128, clip(1.0))
    held["granite_mel"] = granite_mel(clip(1.0), 80).numpy()
    held["parakeet_mel"] = parakeet_mel(clip(1.0), 128)[0][0].numpy()
    with torch.no_grad():
        for kind, family in FAMILIES.items():
            tensors = tensors_of(kind, WIDTH)
            for name, seconds in {**CLIPS, **MORE.get(kind, {})}.items():
                held[f"{kind}_{name}"] = family(tensors, clip(seconds)).numpy().astype(np.float32)
                print(kind, name, held[f"{kind}_{name}"].shape)
    np.savez_compressed(Path(__file__).parent / "transformers_audio.npz", **held)


if __name__ == "__main__":
    main()
