"""A tiny model of any architecture: what it asks for while it records is what the file has.

`invent(path, arch)` records over a reader that has no file: keys answer with small numbers, and
every tensor is made when its name is asked for with the shape that was wanted.
"""

import inspect
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from oxillama import quant
from oxillama.gguf import GgufReader, GgufWriter
from oxillama.model.builder import Builder, recorders
from oxillama.model.tensors import Tensor

VOCAB, HIDDEN = 80, 64
# Small numbers for the keys that architectures share; what is not here is absent from the file.
SHARED = {
    "block_count": 4,
    "context_length": 256,
    "embedding_length": HIDDEN,
    "feed_forward_length": 96,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "attention.key_length": 32,
    "attention.value_length": 32,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "attention.layer_norm_epsilon": 1e-5,
    "rope.freq_base": 10000.0,
    "rope.dimension_count": 16,
    "attention.sliding_window": 8,
    "ssm.conv_kernel": 4,
    "ssm.inner_size": 128,
    "ssm.state_size": 16,
    "ssm.time_step_rank": 8,
    "ssm.group_count": 2,
    "shortconv.l_cache": 3,
    "expert_count": 4,
    "expert_used_count": 2,
    "expert_feed_forward_length": 32,
    "leading_dense_block_count": 1,
    "attention.q_lora_rank": 32,
    "attention.kv_lora_rank": 32,
    "attention.key_length_mla": 48,
    "attention.value_length_mla": 32,
    "attention.relative_buckets_count": 32,
    "wkv.head_size": 16,
    "time_mix_extra_dim": 16,
    "time_decay_extra_dim": 8,
    "attention.decay_lora_rank": 8,
    "attention.iclr_lora_rank": 8,
    "attention.value_residual_mix_lora_rank": 8,
    "attention.gate_lora_rank": 16,
}
# Of models with sparse attention: fewer keys than the tests' sequences have.
INDEXER = {
    "attention.indexer.head_count": 2,
    "attention.indexer.key_length": 32,
    "attention.indexer.top_k": 24,
}
# What an architecture means by a key that others mean otherwise, or lacks (None).
OWN: dict[str, dict] = {
    "llama": {"expert_count": None},
    "gemma3": {"attention.sliding_window_pattern": 3, "rope.dimension_count": None},
    "deepseek2": {"attention.head_count_kv": 1},
    "mamba": {"attention.head_count": 0, "feed_forward_length": 0},
    "mamba2": {"attention.head_count": 0, "feed_forward_length": 0},
    "lfm2": {"attention.head_count_kv": [0, 2, 0, 0]},
    "jamba": {"attention.head_count_kv": [0, 2, 0, 0]},
    "mpt": {"attention.max_alibi_bias": 8.0, "attention.clamp_kqv": 2.0},
    "jais": {"attention.max_alibi_bias": 8.0},
    "command-r": {"logit_scale": 0.25},
    "cohere2": {"logit_scale": 0.25},
    "falcon": {"attention.head_count_kv": 1},
    "gptneox": {"use_parallel_residual": False},
    "granite": {
        "embedding_scale": 3.0,
        "residual_scale": 0.5,
        "logit_scale": 2.0,
        "deepstack_mapping": [-1, -1, -1, -1],
    },
    "granite_swa": {
        "attention.sliding_window_pattern": [True, False, True, False],
        "attention.rope_pattern": [True, True, True, False],
        "attention.scale": 0.2,
    },
    "olmo": {"attention.clamp_kqv": 2.0},
    "olmo2": {"attention.sliding_window_pattern": [True, False, True, True]},
    "qwen2vl": {"rope.dimension_sections": [2, 3, 3, 0]},
    "qwen3vl": {"rope.dimension_sections": [3, 3, 2, 0]},
    "paddleocr": {
        "rope.dimension_sections": [2, 3, 3, 0],
        "attention.key_length": 16,
        "attention.value_length": 16,
    },
    "plamo3": {
        "attention.sliding_window_pattern": 2,
        "rope.freq_base_swa": 5000.0,
        "rope.dimension_count": 32,
    },
    "gemma2": {"attn_logit_softcapping": 5.0, "final_logit_softcapping": 3.0},
    "gemma4": {
        "attention.sliding_window_pattern": [True, False, True, False],
        "attention.shared_kv_layers": 2,
        "attention.key_length_swa": 16,
        "attention.value_length_swa": 16,
        "rope.dimension_count_swa": 16,
        "embedding_length_per_layer_input": 16,
    },
    "gemma3n": {
        "attention.sliding_window_pattern": [True, False, True, False],
        "attention.shared_kv_layers": 2,
        "embedding_length_per_layer_input": 16,
        "activation_sparsity_scale": [0.5, 1.5, float("-inf"), float("-inf")],
    },
    "t5": {"decoder_block_count": 3, "decoder_start_token_id": 0},
    "minicpm3": {"attention.head_count_kv": 4, "attention.value_length": 16},
    "mistral3": {
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": 4.0,
        "rope.scaling.original_context_length": 16,
        "rope.scaling.yarn_log_multiplier": 1.0,
        "attention.temperature_scale": 0.1,
    },
    "gemma-embedding": {"attention.sliding_window_pattern": 3},
    "dbrx": {"attention.clamp_kqv": 2.0},
    "llama4": {"interleave_moe_layer_step": 2, "expert_used_count": 2},
    "granitemoe": {"embedding_scale": 3.0, "residual_scale": 0.5, "attention.scale": 0.2},
    "graniteswitch": {
        "embedding_scale": 3.0,
        "residual_scale": 0.5,
        "attention.scale": 0.2,
        "logit_scale": 2.0,
        "adapters.count": 3,
        "adapters.lora_rank": 16,
        "adapters.token_ids_activate": [68, 62, 75],
        "adapters.token_ids_substitute": [1, 2, 1],
    },
    "granitehybrid": {"attention.head_count_kv": [0, 2, 0, 0], "logit_scale": 2.0},
    "lfm2moe": {"attention.head_count_kv": [0, 2, 0, 0]},
    "hunyuan-moe": {"feed_forward_length": 32},
    "ernie4_5-moe": {"interleave_moe_layer_step": 2},
    # an epsilon beside which the norm of a head that happens to be near 0 does not enlarge rounding
    "qwen3next": {"attention.layer_norm_rms_epsilon": 1e-2},
    "qwen35": {
        "attention.layer_norm_rms_epsilon": 1e-2,
        "rope.dimension_sections": [3, 3, 2],
    },
    "qwen35moe": {
        "attention.layer_norm_rms_epsilon": 1e-2,
        "rope.dimension_sections": [3, 3, 2],
    },
    "qwen3vlmoe": {"rope.dimension_sections": [3, 3, 2]},
    "mistral4": {
        "attention.head_count_kv": 1,
        "attention.temperature_scale": 0.1,
        "attention.temperature_length": 16,
    },
    "mimo2": {
        "attention.sliding_window_pattern": [False, True, True, False],
        "attention.value_length": 16,
        "attention.value_scale": 0.7,
    },
    "step35": {
        "attention.sliding_window_pattern": [False, True, True, False],
        "swiglu_clamp_exp": [0.0, 0.0, 0.5, 0.5],
        "swiglu_clamp_shexp": [0.0, 0.0, 0.5, 0.0],
    },
    "laguna": {"attention.head_count": [4, 2, 4, 2], "rope.dimension_count_swa": 32},
    "nanbeige": {"num_loops": 2},
    "openelm": {
        "attention.head_count": [2, 4, 4, 2],
        "attention.head_count_kv": [1, 2, 1, 2],
        "feed_forward_length": [32, 64, 96, 64],
    },
    "deci": {
        "attention.head_count": [4, 0, 4, 4],
        "attention.head_count_kv": [2, 0, 0, 4],
        "feed_forward_length": [64, 32, 0, 96],
    },
    "nomic-bert-moe": {"moe_every_n_layers": 2, "feed_forward_length": 32},
    "plm": {
        "attention.head_count_kv": 4,
        "attention.value_length": 16,
        "attention.q_lora_rank": None,
    },
    "kimi-linear": {"attention.head_count_kv": [0, 0, 0, 1], "kda.head_dim": 32},
    "kimi-k3": {
        "attention.layer_norm_rms_epsilon": 1e-2,  # as for qwen3next
        "attention.head_count_kv": [0, 0, 1, 0],
        "kda.head_dim": 32,
        "kda.gate_lower_bound": -5.0,
        "attn_res.block_size": 2,
        "activation.situ_beta": 0.5,
        "activation.situ_linear_beta": 2.0,
        "expert_latent_length": 32,
    },
    "bailingmoe3": {
        # an epsilon as for qwen3next below
        "attention.layer_norm_rms_epsilon": 1e-2,
        "attention.head_count_kv": [0, 0, 0, 1],
        "kda.head_dim": 32,
        "kda.gate_lower_bound": -5.0,
        "swiglu_clamp_exp": [0.0, 0.5, 0.0, 0.5],
        "swiglu_clamp_shexp": [0.5, 0.0, 0.5, 0.0],
    },
    "chameleon": {"swin_norm": True},
    "deepseek32": {"attention.head_count_kv": 1, **INDEXER},
    "glm-dsa": {
        "attention.head_count_kv": 1,
        "attention.indexer.types": [True, False, True, False],
        **INDEXER,
    },
    "deepseek4": {
        "attention.head_count_kv": 1,
        "attention.compress_ratios": [0, 4, 128, 4],
        "attention.compress_rope_freq_base": 5000.0,
        "attention.output_group_count": 2,
        "attention.output_lora_rank": 16,
        "expert_gating_func": 4,
        "expert_weights_norm": True,
        "hash_layer_count": 2,
        "hyper_connection.count": 4,
        "hyper_connection.epsilon": 1e-3,
        "hyper_connection.sinkhorn_iterations": 5,
        "leading_dense_block_count": None,
        "swiglu_clamp_exp": [0.0, 0.5, 0.5, 0.5],
        "swiglu_clamp_shexp": [0.5, 0.5, 0.0, 0.5],
        **INDEXER,
        "attention.indexer.top_k": 7,
    },
    "grok": {"final_logit_softcapping": 3.0},
    "grovemoe": {
        "expert_group_scale": 0.5,
        "experts_per_group": 2,
        "expert_chunk_feed_forward_length": 16,
    },
    "hrm_text": {"hrm.layers_per_stack": 1, "hrm.h_cycles": 1, "hrm.l_cycles": 3},
    "hunyuan_vl": {"rope.dimension_sections": [2, 2, 2, 2], "rope.scaling.alpha": 8.0},
    "dots3note": {
        "attention.head_count": [2, 4, 2, 4],
        "attention.head_count_kv": 1,
        "attention.sliding_window_pattern": [False, True, False, True],
        "attention.kv_lora_rank_swa": 48,
        "attention.key_length_mla_swa": 40,
        "attention.value_length_mla_swa": 16,
        "rope.freq_base_swa": 5000.0,
        "attention.indexer.types": [True, False, True, False],
        **INDEXER,
    },
    "glm5-next": {
        "attention.layer_norm_rms_epsilon": 1e-2,  # as for qwen3next
        "attention.head_count_kv": [0, 0, 1, 0],
        "rope.dimension_count": 0,
        "kda.head_dim": 32,
        "kda.gate_lower_bound": -5.0,
        "attention.indexer.types": [False, False, True, False],
        "attention.indexer.kpool": 4,
        "attention.indexer.kpool_select_tail": True,
        "hyper_connection.count": 4,
        "hyper_connection.epsilon": 1e-3,
        "hyper_connection.sinkhorn_iterations": 5,
        "swiglu_clamp_exp": [0.0, 0.5, 0.5, 0.5],
        "swiglu_clamp_shexp": [0.5, 0.5, 0.0, 0.5],
        **INDEXER,
    },
    "hy_v4": {
        "attention.head_count_kv": 1,
        "attention.indexer.types": [True, True, False, True],
        "hyper_connection.count": 3,
        "hyper_connection.epsilon": 1e-3,
        "hyper_connection.magnitude": 2.0,
        "swiglu_clamp_exp": [0.0, 0.5, 0.5, 0.5],
        **INDEXER,
    },
    "maple": {
        "attention.sliding_window_pattern": [True, False, True, True],
        "rope.freq_base_swa": 5000.0,
        "swiglu_clamp_exp": [0.5, 0.0, 0.5, 0.0],
    },
    "qwen4exp": {
        "attention.layer_norm_rms_epsilon": 1e-2,  # as for qwen3next
        "rope.dimension_sections": [3, 3, 2],
        "leading_dense_block_count": None,
        "hyper_connection.count": 3,
        "hyper_connection.low_rank": 32,
        **INDEXER,
        "attention.compress_ratios": [0, 0, 0, 4],
        "embedding_length_per_layer_input": 32,
        "ple.layers": [1],
        "ple.ngram_size": 3,
        "ple.heads_per_ngram": 2,
        "ple.conv_kernel": 3,
        "ple.eos_token_id": 37,  # the second token of the tests' texts
        "ple.image_token_id": 5,
        "ple.layer_multipliers": [83558512331482385, 78689173079975349, 112960188720221647],
        "ple.head_offsets": [0, 23, 52, 83],
        "ple.head_vocab_sizes": [23, 29, 31, 37],
    },
    "minimax-01": {"full_attention_interval": 4, "residual_scale": 3.5},
    "minimax-m3": {
        **INDEXER,
        "attention.indexer.top_k": 2,
        "attention.indexer.block_size": 16,
        "attention.indexer.local_blocks": 1,
    },
    "muse-glimmer": {"logit_scale": 0.5, "final_logit_softcapping": 3.0},
    # widths of heads as llama.cpp takes them: all of a head is rotated, heads make up a row
    "dream": {"attention.key_length": 16, "attention.value_length": 16},
    "llada": {"expert_count": None, "rope.dimension_count": 32},
    "llada-moe": {
        "attention.key_length": 16,
        "attention.value_length": 16,
        "leading_dense_block_count": None,
    },
    "rnd1": {"rope.dimension_count": 32, "leading_dense_block_count": None},
    "plamo2": {
        "attention.head_count": [0, 4, 0, 0],
        "attention.head_count_kv": [0, 2, 0, 0],
        "ssm.group_count": 0,
    },
    "spark2_5": {
        "attention.sliding_window_pattern": [True, False, True, True],
        "rope.freq_base_swa": 5000.0,
        "rope.dimension_count_swa": 8,
    },
    "talkie": {"logit_scale": 0.5},
    "rwkv6": {"attention.head_count": 0, "rescale_every_n_layers": 2},
    "rwkv7": {"attention.head_count": 0},
    "rwkv6qwen2": {"attention.head_count": 0, "token_shift_count": 1},
    "arwkv7": {"attention.head_count": 0, "token_shift_count": 1},
    "nemotron_h": {
        "attention.head_count_kv": [0, 2, 0, 0],
        "feed_forward_length": [0, 0, 96, 0],
        "expert_count": None,
    },
    "nemotron_h_moe": {
        "attention.head_count_kv": [0, 2, 0, 0],
        "feed_forward_length": [0, 0, 96, 0],
        "moe_latent_size": HIDDEN,
    },
}
# Keys without the architecture's name.
_MASK = {"tokenizer.ggml.mask_token_id": VOCAB - 1}
ROOT: dict[str, dict] = {
    "dream": _MASK,
    "llada": _MASK | {"diffusion.shift_logits": False},
    "llada-moe": _MASK | {"diffusion.shift_logits": False},
    "rnd1": _MASK,
    "apertus": {
        "xielu.alpha_n": [-0.2, -0.1, 0.1, 0.2],
        "xielu.alpha_p": [0.3, 0.2, 0.1, 0.0],
        "xielu.beta": 0.5,
        "xielu.eps": -1e-6,
    },
}


def _each(layers: tuple[int, ...], *names: str) -> tuple[str, ...]:
    """These tensors of these layers."""
    return tuple(f"blk.{i}.{name}" for i in layers for name in names)


_ALL, _SPARSE = (0, 1, 2, 3), (1, 2, 3)
_BIASES = tuple(f"attn_{n}.bias" for n in "qkv")
_STATE = ("ssm_conv1d.bias", "ssm_norm.weight")
_GATE = ("time_mix_g1.weight", "time_mix_g2.weight")
_HEADS = ("time_mix_ln.weight", "time_mix_ln.bias")
_BONUS = ("time_mix_first.weight", *_HEADS)
_NORM_BIASES = ("attn_q_norm.bias", "attn_k_norm.bias")
_NORMS = ("token_embd_norm.bias", "output_norm.bias", "output.weight")
_NORMS += _each(_ALL, "attn_norm.bias", "attn_norm_2.bias")

# Tensors that an architecture looks for before it asks, and has in the tiny model.
WANTED: dict[str, tuple[str, ...]] = {
    "qwen2": tuple(f"blk.{i}.attn_{n}.bias" for i in range(4) for n in "qkv"),
    "mamba": tuple(f"blk.{i}.ssm_{n}.bias" for i in range(4) for n in ("conv1d", "dt")),
    "jamba": (
        *(f"blk.{i}.ssm_{n}.bias" for i in (0, 2, 3) for n in ("conv1d", "dt")),
        *(f"blk.{i}.ffn_gate_inp.weight" for i in (1, 3)),
    ),
    "plamo3": _each(_ALL, "attn_qkv.weight", "post_attention_norm", "post_ffw_norm"),
    "bloom": ("blk.1.attn_qkv.weight", "blk.1.attn_qkv.bias", "token_embd_norm.bias"),
    "mpt": ("position_embd.weight", "blk.1.attn_q_norm.weight", "blk.2.attn_norm.bias"),
    "command-r": ("blk.1.attn_q_norm.weight", "blk.2.attn_q_norm.weight"),
    "falcon": ("blk.0.attn_qkv.weight", "blk.1.attn_norm_2.weight", "output_norm.bias"),
    "gpt2": ("blk.0.attn_qkv.weight", "blk.0.attn_qkv.bias", "blk.1.ffn_up.bias"),
    "granite_swa": (
        *("blk.1.attn_sinks.weight", "blk.2.ffn_gate_inp.weight"),
        *("blk.2.ffn_gate_up_exps.weight", "blk.2.ffn_up_shexp.weight"),
    ),
    "phi2": ("output.weight", "output.bias"),
    "phi3": ("rope_factors_long.weight", "blk.0.attn_qkv.weight"),
    "gemma4": (
        *("rope_freqs.weight", "blk.0.attn_v.weight", "blk.2.layer_output_scale.weight"),
        *("blk.1.ffn_gate_inp.weight", "blk.1.ffn_gate_up_exps.weight"),
        *("blk.1.ffn_down_exps.scale", "blk.3.ffn_gate_inp.weight"),
    ),
    "stablelm": ("blk.0.ffn_norm.weight", "blk.1.attn_q_norm.weight", "blk.2.attn_q.bias"),
    "bert": ("token_types.weight", "cls.weight", "cls.output.weight"),
    "nomic-bert": ("token_types.weight",),
    "jina-bert-v2": tuple(
        f"blk.{i}.{n}.weight"
        for i in range(4)
        for n in ("attn_q_norm", "attn_k_norm", "attn_norm_2")
    ),
    "modern-bert": (
        *(f"blk.{i}.attn_norm.weight" for i in (1, 2, 3)),
        *("cls.weight", "cls.norm.weight", "cls.output.weight"),
    ),
    "gemma-embedding": ("dense_2.weight", "dense_3.weight"),
    "t5": (
        *("enc.blk.0.attn_rel_b.weight", "dec.blk.0.attn_rel_b.weight", "output.weight"),
        *(f"{side}.blk.{i}.ffn_gate.weight" for side in ("enc", "dec") for i in range(3)),
    ),
    "t5encoder": (
        "enc.blk.0.attn_rel_b.weight",
        *(f"enc.blk.{i}.ffn_gate.weight" for i in range(4)),
    ),
    "deepseek2": _each(_SPARSE, "ffn_up_shexp.weight", "exp_probs_b.bias"),
    "mamba2": _each(_ALL, *_STATE),
    "dbrx": _each(_ALL, "attn_qkv.weight"),
    "llama4": _each((1, 3), "ffn_up_shexp.weight"),
    "phimoe": _each(_ALL, "attn_output.bias", *_BIASES) + ("output.weight", "output.bias"),
    "qwen2moe": _each(_ALL, *_BIASES)
    + _each(_SPARSE, "ffn_up_shexp.weight", "ffn_gate_inp_shexp.weight"),
    "dots1": _each(_SPARSE, "ffn_up_shexp.weight", "exp_probs_b.bias"),
    "glm4moe": _each(_ALL, "attn_q_norm.weight", *_BIASES)
    + _each(_SPARSE, "ffn_up_shexp.weight", "exp_probs_b.bias"),
    "exaone-moe": _each(_SPARSE, "ffn_up_shexp.weight", "exp_probs_b.bias"),
    "ernie4_5-moe": _each((1, 3), "ffn_up_shexp.weight", "exp_probs_b.bias"),
    "hunyuan-moe": _each(_ALL, "ffn_up_shexp.weight"),
    "hy_v3": _each(_SPARSE, "ffn_gate_inp.weight", "ffn_up_shexp.weight", "exp_probs_b"),
    "minimax-m2": _each(_SPARSE, "exp_probs_b.bias"),
    "cohere2moe": _each(_SPARSE, "ffn_up_shexp.weight"),
    "afmoe": _each(_ALL, "attn_gate.weight")
    + _each(_SPARSE, "ffn_up_shexp.weight", "exp_probs_b.bias"),
    "lfm2moe": _each(_SPARSE, "exp_probs_b.bias"),
    "gpt-oss": _each(_ALL, "attn_sinks.weight", "attn_output.bias", "ffn_gate_inp.bias", *_BIASES)
    + _each(_ALL, *(f"ffn_{n}_exps.bias" for n in ("gate", "up", "down"))),
    "qwen3next": _each(_SPARSE, "ffn_up_shexp.weight", "ffn_gate_inp_shexp.weight"),
    "qwen35moe": _each(_SPARSE, "ffn_up_shexp.weight", "ffn_gate_inp_shexp.weight"),
    "qwen4exp": _each(_ALL, "ffn_up_shexp.weight", "ffn_gate_inp_shexp.weight")
    + ("output.weight",),
    "bailingmoe": _each(_SPARSE, "ffn_up_shexp.weight"),
    "bailingmoe2": _each(_SPARSE, "ffn_up_shexp.weight", "exp_probs_b.bias"),
    "granitemoe": _each(_ALL, "ffn_up_shexp.weight"),
    "granitehybrid": _each(_ALL, "ffn_up_shexp.weight") + _each((0, 2, 3), *_STATE),
    "falcon-h1": _each(_ALL, "ssm_conv1d.bias", "ffn_norm"),
    "deepseek": _each(_SPARSE, "ffn_up_shexp.weight"),
    "mistral4": _each(_SPARSE, "ffn_up_shexp.weight", "exp_probs_b.bias"),
    "mimo2": _each(_SPARSE, "ffn_gate_inp.weight", "exp_probs_b.bias")
    + _each((1, 2), "attn_sinks.weight"),
    "step35": _each(_ALL, "attn_gate.weight", "attn_q_norm.weight")
    + _each(_SPARSE, "ffn_gate_inp.weight", "ffn_up_shexp.weight", "exp_probs_b.bias"),
    "laguna": _each(_ALL, "attn_gate.weight")
    + _each(_SPARSE, "ffn_up_shexp.weight", "exp_probs_b.bias"),
    "bitnet": _each(_ALL, "attn_sub_norm.weight", "ffn_sub_norm.weight", "attn_q.scale"),
    "kimi-linear": _each(_SPARSE, "ffn_up_shexp.weight", "exp_probs_b.bias"),
    "bailingmoe3": _each(_SPARSE, "ffn_up_shexp.weight", "exp_probs_b.bias")
    + ("blk.3.attn_gate.weight",),
    "kimi-k3": _each(_SPARSE, "ffn_up_shexp.weight", "exp_probs_b.bias", "ffn_routed_norm.weight")
    + _each((0, 1, 3), "ssm_g.weight", "ssm_f_b.weight")
    + ("blk.0.attn_res_score.weight", "blk.2.attn_gate.weight", "output.weight"),
    "chameleon": _each(_ALL, *_NORM_BIASES),
    "cogvlm": _each(_ALL, "attn_qkv.weight", "vis_attn_qkv.weight"),
    "deepseek32": _each(_SPARSE, "ffn_up_shexp.weight", "exp_probs_b.bias")
    + _each(_ALL, "indexer.k_norm.bias"),
    "glm-dsa": _each((0, 2), "indexer.k_norm.bias"),
    "deepseek2-ocr": _each(_SPARSE, "ffn_up_shexp.weight"),
    "deepseek4": _each(_ALL, "ffn_up_shexp.weight")
    + _each((0, 1), "ffn_gate_tid2eid.weight")
    + _each((2, 3), "exp_probs_b.bias")
    + ("output.weight",),
    "dots3note": _each(_SPARSE, "ffn_up_shexp.weight", "exp_probs_b.bias")
    + _each(_ALL, "attn_gate.weight", "attn_k_norm.weight")
    + _each((0, 2), "indexer.k_norm.bias"),
    "glm5-next": _each(_SPARSE, "ffn_up_shexp.weight", "exp_probs_b.bias")
    + _each((0, 1, 3), "ssm_f_b.weight", "ssm_g_b.weight")
    + ("blk.2.indexer.k_norm.bias", "output.weight"),
    "hy_v4": _each(_SPARSE, "ffn_up_shexp.weight", "exp_probs_b.bias")
    + _each(_ALL, "attn_sinks.weight", "attn_gate.weight")
    + _each((0, 1, 3), "indexer.k_norm.bias")
    # of a layer that takes the choice of the one before it
    + ("blk.2.indexer.proj.weight", "output.weight"),
    "grok": _each((0, 1), "ffn_up.weight", "layer_output_norm.weight"),
    "spark2_5": _each(_ALL, "attn_qkv.weight", "attn_gate.weight"),
    "minimax-m3": _each(_SPARSE, "ffn_gate_inp.weight", "ffn_up_shexp.weight", "exp_probs_b.bias"),
    "muse-glimmer": _each(_ALL, "attn_gate.weight"),
    "dream": _each(_ALL, *_BIASES) + ("output.weight",),
    "llada": ("output.weight",),
    "llada-moe": ("output.weight",),
    "rnd1": ("output.weight",),
    "hrm_text": _each((0, 1), "attn_gate.weight"),
    "neo-bert": _each(_ALL, "attn_qkv.weight", "ffn_up.weight"),
    "nomic-bert-moe": ("token_types.weight", *_each(_ALL, "attn_qkv.weight")),
    "rwkv6": _each((0, 1, 2), "time_mix_lerp_fused.weight") + _each(_ALL, *_BONUS) + _NORMS,
    "rwkv7": _each(_ALL, *_GATE, *_HEADS) + _NORMS,
    "rwkv6qwen2": _each(_ALL, "time_mix_lerp_fused.weight", "time_mix_key.bias"),
    "nemotron_h": _each((0, 3), *_STATE),
    "nemotron_h_moe": _each((0,), *_STATE)
    + _each((3,), "ffn_gate_inp.weight", "ffn_up_shexp.weight", "exp_probs_b.bias"),
}
# Layers that predict further tokens are like the last of the others, but for what an architecture's
# lists say of them, tensors that they have beside a norm and a projection, and some that they lack.
FURTHER: dict[str, dict] = {
    "deepseek4": {"attention.compress_ratios": 0},
    "mimo2": {"attention.sliding_window_pattern": True},
    "nemotron_h_moe": {"attention.head_count_kv": 2},
}
FURTHER_WANTED: dict[str, tuple[str, ...]] = {
    "bailingmoe3": ("layer_output_norm.weight",),
    "cohere2moe": (),  # it ends in the norm that the other layers end in
    "glm4moe": tuple(
        f"nextn.{name}.weight" for name in ("embed_tokens", "shared_head_norm", "shared_head_head")
    ),
    "mimo2": ("layer_output_norm.weight", "attn_qkv.weight"),
    "nemotron_h_moe": ("nextn.shared_head_norm.weight", "post_attention_norm.weight"),
}
FURTHER_LACKS: dict[str, tuple[str, ...]] = {
    "deepseek32": ("indexer.k_norm.bias",),
    "mimo2": ("ffn_gate_inp.weight", "exp_probs_b.bias"),
}
# Shapes that an architecture reads off its file instead of asking for them, by the end of the name.
SHAPES = {
    "attn_q_norm.weight": (4, 32),
    "attn_k_norm.weight": (2, 32),
    "token_embd.weight": (VOCAB, HIDDEN),
    "position_embd.weight": (256, HIDDEN),
    "per_layer_token_embd.weight": (VOCAB, HIDDEN),
    "laurel_l.weight": (16, HIDDEN),
    "ffn_down_shexp.weight": (HIDDEN, 48),
    "ffn_gate_up_exps.weight": (4, 64, HIDDEN),
    "ffn_up_shexp.weight": (48, HIDDEN),
    "ffn_gate_exps.weight": (4, 32, HIDDEN),
    "ffn_up_exps.weight": (4, 32, HIDDEN),
    "ffn_down_exps.weight": (4, HIDDEN, 32),
    "token_types.weight": (2, HIDDEN),
    "cls.weight": (HIDDEN, HIDDEN),
    "cls.norm.weight": (HIDDEN,),
    "cls.output.weight": (3, HIDDEN),
    "dense_2.weight": (96, HIDDEN),
    "dense_3.weight": (HIDDEN, 96),
}


# Shapes by which an architecture knows what a tensor is, by architecture and whole name.
KNOWN = {
    # a gate beside the queries of each head
    arch: {"blk.3.attn_q.weight": (256, HIDDEN)}
    for arch in ("qwen3next", "qwen35", "qwen35moe", "qwen4exp")
}
KNOWN["qwen4exp"]["per_layer_token_embd.weight"] = (128, 32)
# a gate for each head in some layers, for each float in others
KNOWN["step35"] = {f"blk.{i}.attn_gate.weight": (4, HIDDEN) for i in range(4)}
KNOWN["laguna"] = {"blk.0.attn_gate.weight": (4, HIDDEN), "blk.1.attn_gate.weight": (2, HIDDEN)}
KNOWN["kimi-linear"] = {f"blk.{i}.ssm_norm.weight": (32,) for i in range(3)}
KNOWN["glm5-next"] = {f"blk.{i}.ssm_norm.weight": (32,) for i in (0, 1, 3)}
KNOWN["glm5-next"] |= {f"blk.{i}.ssm_a": (4,) for i in (0, 1, 3)}
KNOWN["kimi-k3"] = {f"blk.{i}.ssm_norm.weight": (32,) for i in (0, 1, 3)}
KNOWN["kimi-k3"] |= {f"blk.{i}.ssm_a": (4,) for i in (0, 1, 3)}
KNOWN["kimi-k3"] |= {"blk.2.attn_gate.weight": (128, HIDDEN), "output_res_score.weight": (HIDDEN,)}
for name in ("attn", "ffn"):
    KNOWN["kimi-k3"] |= {f"blk.{i}.{name}_res_score.weight": (HIDDEN,) for i in range(4)}
for name in ("gate", "up", "down"):
    KNOWN["kimi-k3"] |= {f"blk.{i}.ffn_{name}_exps.weight": (4, 32, 32) for i in (1, 2, 3)}
KNOWN["bailingmoe3"] = {f"blk.{i}.ssm_norm.weight": (32,) for i in range(3)}
KNOWN["bailingmoe3"]["blk.3.attn_gate.weight"] = (4, HIDDEN)
KNOWN["dots3note"] = {f"blk.{i}.attn_gate.weight": ((2, 4, 2, 4)[i], HIDDEN) for i in range(4)} | {
    f"blk.{i}.attn_k_norm.weight": (16,) for i in range(4)
}
# a gate for each float of a head of 32
KNOWN["hy_v4"] = {f"blk.{i}.attn_gate.weight": (128, HIDDEN) for i in range(4)}
KNOWN["spark2_5"] = {f"blk.{i}.attn_gate.weight": (4, HIDDEN) for i in range(4)}
KNOWN["grovemoe"] = {
    f"blk.{i}.ffn_{name}_chexps.weight": (2, HIDDEN, 16) if name == "down" else (2, 16, HIDDEN)
    for i in range(4)
    for name in ("gate", "up", "down")
}
for arch in ("neo-bert", "plamo3"):  # gate and up in one
    KNOWN[arch] = {f"blk.{i}.ffn_up.weight": (192, HIDDEN) for i in range(4)}


# what was learned already, by architecture and hyper-parameters
_LEARNED: dict[tuple[str, str], tuple[dict[str, tuple[int, ...]], set[str]]] = {}


@dataclass
class _Info:
    shape: tuple[int, ...]
    type_name: str = "F32"


class _Nothing:
    """A reader without a file: tensors of the shapes that were learned so far."""

    def __init__(self, metadata: dict, shapes: dict[str, tuple[int, ...]]) -> None:
        self.metadata = metadata
        self.tensors = {name: _Info(shape) for name, shape in shapes.items()}
        # whether a tensor or a shape was asked for that it did not have
        self.new = False

    def data(self, name: str) -> np.ndarray:
        fill = np.float32(0 if name.endswith(".lora_b") else 1)
        return np.full(int(np.prod(self.tensors[name].shape)), fill).view(np.uint8)


class _Learner(Builder):
    """Records over `_Nothing`, and gives each tensor that is asked for the shape wanted of it."""

    reader: _Nothing

    def __init__(self, reader: _Nothing, arch: str) -> None:
        # the tensors whose shape this recording said already
        self.told: set[str] = set()
        super().__init__(reader, arch)

    def _info(self, name: str, *shape: int) -> _Info:
        if name not in self.reader.tensors:
            self.reader.tensors[name] = _Info(_shape_of(name))
            self.reader.new = True
        return super()._info(name, *shape)

    def _ask(self, name: str, shape: tuple[int, ...]) -> None:
        info = self._info(name)
        if info.shape != shape and name not in self.told:
            info.shape = shape
            self.reader.new = True
        self.told.add(name)

    def stack(self, name: str, count: int, rows: int, columns: int, *, skip: int = 0) -> Tensor:
        one = name.endswith("attn_output_a.weight")  # which files hold as one matrix
        self._ask(name, (count * rows, columns) if one else (count, rows, columns))
        return super().stack(name, count, rows, columns, skip=skip)

    def array(self, name: str, *shape: int) -> np.ndarray:
        self._ask(name, shape)
        return super().array(name, *shape)

    def matrix(self, name: str, rows: int, columns: int, *, take: slice | None = None) -> Tensor:
        self._ask(name, (rows, columns))
        return super().matrix(name, rows, columns, take=take)

    def vector(self, name: str, size: int) -> np.ndarray:
        self._ask(name, (size,))
        return super().vector(name, size)

    def numbers(self, name: str, rows: int, columns: int, below: int) -> np.ndarray:
        self._ask(name, (rows, columns))
        return np.zeros((rows, columns), np.int32)


def metadata(arch: str, further: int = 0) -> dict:
    """The hyper-parameters of the tiny model of `arch`: shared ones, less those it does not
    read. further: how many layers that predict further tokens come after the others, each like the
    last of these.
    """
    keys = SHARED | OWN.get(arch, {})
    if further:
        layers = keys["block_count"]
        for key, value in keys.items():
            # files say what chooses keys of the other layers alone
            told = "sections" in key or "indexer" in key
            if isinstance(value, list) and len(value) == layers and not told:
                keys[key] = value + [FURTHER.get(arch, {}).get(key, value[-1])] * further
        keys |= {"block_count": layers + further, "nextn_predict_layers": further}
    keys = {f"{arch}.{key}": value for key, value in keys.items() if value is not None}
    return {"general.architecture": arch, **ROOT.get(arch, {}), **keys}


def _shape_of(name: str) -> tuple[int, ...]:
    """The shape that a tensor begins with: its own, or one that is wrong and so told about."""
    return next((shape for end, shape in SHAPES.items() if name.endswith(end)), (1,))


def _first(arch: str, further: int) -> dict[str, tuple[int, ...]]:
    """The tensors that `arch` looks for before it asks, and those by which it knows others."""
    first = {name: _shape_of(name) for name in WANTED.get(arch, ())} | KNOWN.get(arch, {})
    layers = (SHARED | OWN.get(arch, {}))["block_count"]
    last, lacks = f"blk.{layers - 1}.", FURTHER_LACKS.get(arch, ())
    more = FURTHER_WANTED.get(arch, ("nextn.shared_head_norm.weight",))
    for at in range(layers, layers + further):
        first |= {
            f"blk.{at}.{name.removeprefix(last)}": shape
            for name, shape in first.items()
            if name.startswith(last) and not name.endswith(lacks)
        }
        first |= {f"blk.{at}.{name}": _shape_of(name) for name in ("nextn.eh_proj.weight", *more)}
    return first


def shapes(arch: str, further: int = 0) -> tuple[dict[str, tuple[int, ...]], set[str]]:
    """(every tensor that `arch` asks for, the keys that it reads), learned by recording it over and
    over until it asks for nothing new.
    """
    keys = metadata(arch, further)
    if (arch, repr(keys)) in _LEARNED:
        return _LEARNED[arch, repr(keys)]
    first = {"token_embd.weight": (VOCAB, HIDDEN)} | _first(arch, further)
    reader = _Nothing(keys, first)
    while True:
        reader.new = False
        b = _Learner(reader, arch)
        recorders()[arch](b)
        if not reader.new:
            found = {name: info.shape for name, info in reader.tensors.items()}
            _LEARNED[arch, repr(keys)] = found, b.read
            return _LEARNED[arch, repr(keys)]


def encodes(arch: str) -> bool:
    """Whether `arch` has no logits: the recorders of encoders are typed to return None."""
    return inspect.signature(recorders()[arch]).return_annotation in (None, "None")


def generates(arch: str) -> bool:
    """Whether `arch` has logits of a next token."""
    return not encodes(arch) and not _MASK.keys() <= ROOT.get(arch, {}).keys()


def invent(
    path: Path,
    arch: str,
    *,
    kind: str = "F32",
    changed: dict | None = None,
    further: int = 0,
) -> GgufReader:
    """Write the tiny model of `arch` with random weights, matrices as `kind`, and open it; changed:
    keys by their whole names that say something else than what its tensors are made for; further:
    how many layers that predict further tokens it has.
    """
    keys = metadata(arch, further)
    tensors, read = shapes(arch, further)
    rng = np.random.default_rng(7)
    with GgufWriter(path, arch) as writer:
        changed = changed or {}
        for key, value in (keys | changed).items():
            if (
                key in read
                or key in changed
                or key in ROOT.get(arch, {})
                or key.endswith(".context_length")
            ):
                writer.add(key, value)
        for name, shape in tensors.items():
            values = rng.standard_normal(shape).astype(np.float32)
            if name.endswith("ffn_gate_tid2eid.weight"):  # numbers of experts
                numbers = np.argsort(rng.random((shape[0], SHARED["expert_count"])), axis=1)
                writer.add_tensor(name, numbers[:, : shape[1]].astype(np.int32))
                continue
            if name.endswith("ssm_a"):
                values = -np.abs(values) - np.float32(0.1)
            elif name.endswith("_res_score.weight"):
                values = 0.1 * values  # larger scores are a choice, which rounding may flip
            elif len(shape) == 1:
                values = 1 + 0.1 * values
            else:
                values = values / np.sqrt(np.float32(shape[-1]))
            if name.endswith((".lora_a", ".lora_b")):
                values[0] = 0  # of no adapter
            plain = (
                len(shape) == 1
                or kind == "F32"
                or shape[-1] % 32
                or "conv" in name
                or "ssm_a" in name
            )
            if plain:
                writer.add_tensor(name, values)
            else:
                blocks = quant.quantize(values.reshape(-1, shape[-1]), kind)
                writer.add_tensor(name, blocks, type_name=kind, shape=shape)
    return GgufReader(path)


def float64_tensors(reader: GgufReader) -> dict[str, np.ndarray]:
    """The tensors of a file of float32, by name: what a model is written out in formulas with."""
    return {
        name: np.frombuffer(bytes(reader.data(name)), np.float32)
        .reshape(info.shape)
        .astype(np.float64)
        for name, info in reader.tensors.items()
    }
