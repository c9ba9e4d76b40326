"""Encoders: BERT and what is named alike, ModernBERT, EuroBERT, Qwen 3 as a reranker.

How vectors are pooled is read from the folders of sentence-transformers (modules.json).
"""

from __future__ import annotations

import numpy as np

from oxillama.convert.families.dense import PLAIN, bare
from oxillama.convert.family import FAMILIES, Family, Hyper, Keys, Rule, family
from oxillama.convert.keys import common, epsilons, rotation
from oxillama.convert.modules import pooling
from oxillama.errors import ConvertError


def _sizes(h: Hyper, k: Keys, context: int) -> None:
    k.u32("block_count", h.layers)
    k.u32("context_length", context)
    k.u32("embedding_length", h.hidden)
    k.u32("feed_forward_length", h.integer("intermediate_size", "n_inner", "hidden_dim"))
    k.u32("attention.head_count", h.heads)
    epsilons(h, k)
    k.flag("attention.causal", False)
    pooling(h, k)


def _types(h: Hyper, k: Keys) -> None:
    """How many kinds of text a token may belong to (the key has no architecture)."""
    k.found["tokenizer.ggml.token_type_count"] = h.integer("type_vocab_size", default=1), "uint32"


def _labels(h: Hyper) -> list[str]:
    """A classifier's labels, none where they are the two that every configuration is given."""
    said = h.get("id2label", default={})
    if not isinstance(said, dict) or not all(isinstance(one, str) for one in said.values()):
        raise ConvertError(f"{h.label}: id2label: found {said!r:.80}, wanted names by number")
    numbers = [str(number) for number in range(len(said))]
    if said.keys() != set(numbers):
        raise ConvertError(
            f"{h.label}: id2label: found the numbers {', '.join(said):.80}, wanted each from 0 to "
            f"{len(said) - 1}"
        )
    if len(said) == 2 and said["0"] == "LABEL_0":
        return []
    return [said[number] for number in numbers]


def _label_keys(h: Hyper, k: Keys) -> None:
    if "SequenceClassification" in str(h.get("architectures")):
        labels = _labels(h)
        if labels:
            k.texts("classifier.output_labels", labels)


BERT: dict[str, str | Rule] = {
    "embeddings.word_embeddings.weight": "token_embd.weight",
    "embeddings.token_type_embeddings.weight": "token_types.weight",
    "embeddings.position_embeddings.weight": "position_embd.weight",
    "embeddings.LayerNorm.{w}": "token_embd_norm.{w}",
    "encoder.layer.{b}.attention.self.query.{w}": "blk.{b}.attn_q.{w}",
    "encoder.layer.{b}.attention.self.key.{w}": "blk.{b}.attn_k.{w}",
    "encoder.layer.{b}.attention.self.value.{w}": "blk.{b}.attn_v.{w}",
    "encoder.layer.{b}.attention.output.dense.{w}": "blk.{b}.attn_output.{w}",
    "encoder.layer.{b}.attention.output.LayerNorm.{w}": "blk.{b}.attn_output_norm.{w}",
    "encoder.layer.{b}.intermediate.dense.{w}": "blk.{b}.ffn_up.{w}",
    "encoder.layer.{b}.output.dense.{w}": "blk.{b}.ffn_down.{w}",
    "encoder.layer.{b}.output.LayerNorm.{w}": "blk.{b}.layer_output_norm.{w}",
    "classifier.{w}": "cls.output.{w}",
    "classifier.dense.{w}": "cls.{w}",
    "classifier.out_proj.{w}": "cls.output.{w}",
}
# Parts that an encoder's file has no use for: the pooler, and what predicts masked words.
HEADS = (
    "embeddings.position_ids",
    "pooler.dense.{w}",
    "cls.predictions.bias",
    "cls.predictions.transform.dense.{w}",
    "cls.predictions.transform.LayerNorm.{w}",
    "cls.predictions.decoder.{w}",
    "cls.seq_relationship.{w}",
)


GELU = {"hidden_act": ("gelu",)}


@family("BertModel", "BertForMaskedLM", "BertForSequenceClassification", arch="bert", rules=BERT,
        vocabulary="unigram", dropped=HEADS, prefixes=("bert.",))  # fmt: skip
def bert(h: Hyper, k: Keys) -> None:
    """BERT (Devlin et al. 2018). A classifier reads the first token's state: other files have no
    place for the dense layer and tanh between the two.
    """
    h.must_be("hidden_act", "gelu")
    h.must_be("position_embedding_type", "absolute")
    h.must_be("is_decoder", False)
    _sizes(h, k, h.integer("max_position_embeddings"))
    _types(h, k)
    _label_keys(h, k)


@family("DistilBertModel", "DistilBertForMaskedLM", arch="bert", prefixes=("distilbert.",),
        vocabulary="unigram",
        rules={
            **{name: to for name, to in BERT.items() if name.startswith("embeddings.")},
            **{
                f"transformer.layer.{{b}}.{theirs}.{{w}}": f"blk.{{b}}.{ours}.{{w}}"
                for theirs, ours in (
                    ("attention.q_lin", "attn_q"), ("attention.k_lin", "attn_k"),
                    ("attention.v_lin", "attn_v"), ("attention.out_lin", "attn_output"),
                    ("sa_layer_norm", "attn_output_norm"), ("ffn.lin1", "ffn_up"),
                    ("ffn.lin2", "ffn_down"), ("output_layer_norm", "layer_output_norm"),
                )
            },
        },
        dropped=("vocab_transform.{w}", "vocab_layer_norm.{w}", "vocab_projector.{w}"),
        )  # fmt: skip
def distilbert(h: Hyper, k: Keys) -> None:
    """DistilBERT (Sanh et al. 2019): BERT without kinds of text."""
    h.must_be("activation", "gelu")
    _sizes(h, k, h.integer("max_position_embeddings"))
    k.f32("attention.layer_norm_epsilon", 1e-12)
    _types(h, k)


def _first_position(h: Hyper) -> int:
    """Positions are counted from behind the padding token's number."""
    return 1 + h.integer("pad_token_id", default=-1) if h.get("pad_token_id") is not None else 0


def _positions(x: np.ndarray, h: Hyper) -> np.ndarray:
    return x[_first_position(h) :]


ROBERTA: dict[str, str | Rule] = {
    **BERT,
    "embeddings.position_embeddings.weight": Rule(("position_embd.weight",), _positions),
}


_JINA3 = "encoder.layers.{b}."


def _jina3_rules() -> dict[str, str | Rule]:
    """Names of Jina's third embedder; its first class holds matrices beside their adapters."""
    rules: dict[str, str | Rule] = {
        **{name: to for name, to in BERT.items() if name.startswith("embeddings.")},
        "emb_ln.{w}": "token_embd_norm.{w}",
        _JINA3 + "mixer.Wqkv.{w}": "blk.{b}.attn_qkv.{w}",
        _JINA3 + "mixer.out_proj.{w}": "blk.{b}.attn_output.{w}",
        _JINA3 + "norm1.{w}": "blk.{b}.attn_output_norm.{w}",
        _JINA3 + "mlp.fc1.{w}": "blk.{b}.ffn_up.{w}",
        _JINA3 + "mlp.fc2.{w}": "blk.{b}.ffn_down.{w}",
        _JINA3 + "norm2.{w}": "blk.{b}.layer_output_norm.{w}",
    }
    for name, to in list(rules.items()):
        if isinstance(to, str) and name.endswith("{w}") and "ln" not in name:
            held = name.removesuffix("{w}") + "parametrizations.weight."
            rules[held + "original"] = to.replace("{w}", "weight")
    for name in ("word_embeddings", "token_type_embeddings"):
        held = f"embeddings.{name}.parametrizations.weight.original"
        rules[held] = rules[f"embeddings.{name}.weight"]
    return rules


def _adapted(h: Hyper) -> Family | None:
    """Jina's third embedder, whose class has adapters for tasks: a model without them."""
    return FAMILIES["JinaEmbeddingsV3Model"] if h.get("lora_adaptations") else None


@family("JinaEmbeddingsV3Model", arch="jina-bert-v3", rules=_jina3_rules(), meant=GELU,
        dropped=(*HEADS, "pooler.dense.parametrizations.weight.original"),
        prefixes=("roberta.",), vocabulary="unigram")  # fmt: skip
def jina_bert_v3(h: Hyper, k: Keys) -> None:
    """jina-embeddings-v3 (Sturua et al. 2024): XLM-RoBERTa that rotates."""
    _sizes(h, k, h.integer("max_position_embeddings") - _first_position(h))
    rotation(h, k)
    _types(h, k)


@family("XLMRobertaModel", "XLMRobertaForSequenceClassification", arch="bert", rules=ROBERTA,
        dropped=HEADS, vocabulary="unigram", prefixes=("roberta.",), variant=_adapted,
        others=("jina-bert-v3",))  # fmt: skip
@family("RobertaModel", "RobertaForSequenceClassification", arch="bert", rules=ROBERTA,
        dropped=HEADS, vocabulary="unigram", prefixes=("roberta.",))  # fmt: skip
def roberta(h: Hyper, k: Keys) -> None:
    """RoBERTa (Liu et al. 2019) and its kind for many languages (Conneau et al. 2020)."""
    h.must_be("hidden_act", "gelu")
    h.must_be("position_embedding_type", "absolute")
    h.must_be("is_decoder", False)
    _sizes(h, k, h.integer("max_position_embeddings") - _first_position(h))
    _types(h, k)
    _label_keys(h, k)


def _experts_apart(x: np.ndarray, h: Hyper) -> np.ndarray:
    """One matrix of all experts' rows as (experts, width, hidden)."""
    return x.reshape(h.integer("num_experts"), h.integer("n_inner"), h.hidden)


def _experts_turned(x: np.ndarray, h: Hyper) -> np.ndarray:
    return _experts_apart(x, h).transpose(0, 2, 1)


_NOMIC = "encoder.layers.{b}."


def _nomic_moe(h: Hyper) -> Family | None:
    """The family of a configuration with experts in every so many layers."""
    if not h.get("moe_every_n_layers"):
        return None
    rules: dict[str, str | Rule] = {
        **{name: to for name, to in BERT.items() if name.startswith("embeddings.")},
        "emb_ln.{w}": "token_embd_norm.{w}",
        _NOMIC + "attn.Wqkv.{w}": "blk.{b}.attn_qkv.{w}",
        _NOMIC + "attn.out_proj.{w}": "blk.{b}.attn_output.{w}",
        _NOMIC + "norm1.{w}": "blk.{b}.attn_output_norm.{w}",
        _NOMIC + "norm2.{w}": "blk.{b}.layer_output_norm.{w}",
        _NOMIC + "mlp.fc1.{w}": "blk.{b}.ffn_up.{w}",
        _NOMIC + "mlp.fc2.{w}": "blk.{b}.ffn_down.{w}",
        _NOMIC + "mlp.router.layer.weight": "blk.{b}.ffn_gate_inp.weight",
        _NOMIC + "mlp.experts.mlp.w1": Rule(("blk.{b}.ffn_up_exps.weight",), _experts_apart),
        _NOMIC + "mlp.experts.mlp.w2": Rule(("blk.{b}.ffn_down_exps.weight",), _experts_turned),
    }
    # the bias that all experts share is left out of other files too
    dropped = (*HEADS, _NOMIC + "mlp.experts.bias")
    return Family("nomic-bert-moe", rules, nomic_bert_moe, dropped=dropped, vocabulary="unigram")


def nomic_bert_moe(h: Hyper, k: Keys) -> None:
    """nomic-embed-text-v2 (Nussbaum and Duderstadt 2025): trained on 512 tokens."""
    for name, value in (
        ("activation_function", "gelu"), ("causal", False), ("prenorm", False),
        ("qkv_proj_bias", True), ("mlp_fc1_bias", True), ("mlp_fc2_bias", True),
        ("rotary_emb_fraction", 1.0), ("rotary_emb_interleaved", False),
        ("rotary_emb_scale_base", None), ("max_trained_positions", 2048),
    ):  # fmt: skip
        h.must_be(name, value)
    h.must_be("n_positions", 2048, 8192)
    _sizes(h, k, 512 if h.integer("n_positions") == 2048 else 2048)
    rotation(h, k)
    k.u32("expert_count", h.integer("num_experts"))
    k.u32("moe_every_n_layers", h.integer("moe_every_n_layers"))
    k.u32("expert_used_count", h.integer("moe_top_k"))
    _types(h, k)


@family("NomicBertModel", arch="nomic-bert", dropped=HEADS, variant=_nomic_moe,
        others=("nomic-bert-moe",), rules={
    **{name: to for name, to in BERT.items() if name.startswith("embeddings.")},
    "emb_ln.{w}": "token_embd_norm.{w}",
    "encoder.layers.{b}.attn.Wqkv.weight": "blk.{b}.attn_qkv.weight",
    "encoder.layers.{b}.attn.out_proj.weight": "blk.{b}.attn_output.weight",
    "encoder.layers.{b}.mlp.fc11.weight": "blk.{b}.ffn_up.weight",
    "encoder.layers.{b}.mlp.fc12.weight": "blk.{b}.ffn_gate.weight",
    "encoder.layers.{b}.mlp.fc2.weight": "blk.{b}.ffn_down.weight",
    "encoder.layers.{b}.norm1.{w}": "blk.{b}.attn_output_norm.{w}",
    "encoder.layers.{b}.norm2.{w}": "blk.{b}.layer_output_norm.{w}",
})  # fmt: skip
def nomic_bert(h: Hyper, k: Keys) -> None:
    """nomic-embed-text (Nussbaum et al. 2024): rotation, a gate, trained on 2048 tokens."""
    for name, value in (
        ("activation_function", "swiglu"), ("causal", False), ("prenorm", False),
        ("qkv_proj_bias", False), ("mlp_fc1_bias", False), ("mlp_fc2_bias", False),
        ("rotary_emb_fraction", 1.0), ("rotary_emb_interleaved", False),
        ("hidden_act", "silu"),
    ):  # fmt: skip
        h.must_be(name, value)
    h.must_be("rotary_emb_scale_base", None)
    trained = h.integer("max_trained_positions", default=2048)
    context = h.integer("max_position_embeddings", default=None)
    _sizes(h, k, min(h.integer("n_positions"), trained) if context is None else context)
    rotation(h, k)
    if h.get("head_dim") is not None:
        k.u32("attention.key_length", h.head_dim)
        k.u32("attention.value_length", h.head_dim)
    _types(h, k)


_NEO = "transformer_encoder.{b}."


@family("NeoBERT", "NeoBERTLMHead", arch="neo-bert", prefixes=("model.",), meant={
    "hidden_act": ("SwiGLU", "swiglu"),
}, rules={
    "encoder.weight": "token_embd.weight",
    "layer_norm.weight": "enc.output_norm.weight",
    _NEO + "attention_norm.weight": "blk.{b}.attn_norm.weight",
    _NEO + "ffn_norm.weight": "blk.{b}.ffn_norm.weight",
    _NEO + "qkv.weight": "blk.{b}.attn_qkv.weight",
    _NEO + "wo.weight": "blk.{b}.attn_output.weight",
    _NEO + "ffn.w12.weight": "blk.{b}.ffn_up.weight",
    _NEO + "ffn.w3.weight": "blk.{b}.ffn_down.weight",
}, dropped=("decoder.{w}", "freqs_cis"))  # fmt: skip
def neo_bert(h: Hyper, k: Keys) -> None:
    """NeoBERT (Le Breton et al. 2025): a gate and its rows take two thirds of the width each."""
    _sizes(h, k, h.integer("max_length", "max_position_embeddings"))
    k.u32("feed_forward_length", int(2 * h.integer("intermediate_size") / 3))
    k.f32("rope.freq_base", 10000.0)
    k.text("rope.scaling.type", "none")
    k.f32("attention.layer_norm_rms_epsilon", h.number("norm_eps", default=1e-6))
    k.u32("pooling_type", 2)
    _types(h, k)


_JINA = "encoder.layer.{b}."


@family("JinaBertModel", "JinaBertForMaskedLM", arch="jina-bert-v2", dropped=HEADS, meant=GELU,
        prefixes=("bert.",), rules={
            **{name: to for name, to in BERT.items() if "position" not in name},
            _JINA + "attention.self.layer_norm_q.{w}": "blk.{b}.attn_q_norm.{w}",
            _JINA + "attention.self.layer_norm_k.{w}": "blk.{b}.attn_k_norm.{w}",
            _JINA + "layer_norm_1.{w}": "blk.{b}.attn_norm_2.{w}",
            _JINA + "layer_norm_2.{w}": "blk.{b}.layer_output_norm.{w}",
            _JINA + "mlp.layernorm.{w}": "blk.{b}.layer_output_norm.{w}",
            _JINA + "mlp.gated_layers.{w}": "blk.{b}.ffn_up.{w}",
            _JINA + "mlp.up_gated_layer.{w}": "blk.{b}.ffn_up.{w}",
            _JINA + "mlp.gated_layers_w.{w}": "blk.{b}.ffn_gate.{w}",
            _JINA + "mlp.gated_layers_v.{w}": "blk.{b}.ffn_up.{w}",
            _JINA + "mlp.wo.{w}": "blk.{b}.ffn_down.{w}",
            _JINA + "mlp.down_layer.{w}": "blk.{b}.ffn_down.{w}",
        })  # fmt: skip
def jina_bert_v2(h: Hyper, k: Keys) -> None:
    """jina-embeddings-v2 (Guenther et al. 2023): ALiBi to both sides, gated units."""
    h.must_be("position_embedding_type", "alibi")
    _sizes(h, k, h.integer("max_position_embeddings"))
    k.found["tokenizer.ggml.token_type_count"] = h.integer("type_vocab_size", default=2), "uint32"


def _global_period(h: Hyper) -> int:
    """Every how many layers one is global, from the first. As in transformers, a list of the kinds
    rules, and every third is where nothing is said.
    """
    kinds = h.strings("layer_types", h.layers)
    if kinds is None:
        return h.integer("global_attn_every_n_layers", default=3)
    every = [layer for layer, kind in enumerate(kinds) if kind == "full_attention"]
    period = every[1] if len(every) > 1 else len(kinds)
    if every != list(range(0, len(kinds), period)):
        raise ConvertError(
            f"{h.label}: layer_types: a modern-bert file has a global layer every so many layers"
        )
    return period


@family("ModernBertModel", "ModernBertForMaskedLM", "ModernBertForSequenceClassification",
        arch="modern-bert", prefixes=("model.",), rules={
            "embeddings.tok_embeddings.weight": "token_embd.weight",
            "embeddings.norm.weight": "token_embd_norm.weight",
            "final_norm.weight": "output_norm.weight",
            "layers.{b}.attn_norm.weight": "blk.{b}.attn_norm.weight",
            "layers.{b}.attn.Wqkv.weight": "blk.{b}.attn_qkv.weight",
            "layers.{b}.attn.Wo.weight": "blk.{b}.attn_output.weight",
            "layers.{b}.mlp_norm.weight": "blk.{b}.ffn_norm.weight",
            "layers.{b}.mlp.Wi.weight": "blk.{b}.ffn_up.weight",
            "layers.{b}.mlp.Wo.weight": "blk.{b}.ffn_down.weight",
            "head.dense.weight": "cls.weight",
            "head.norm.weight": "cls.norm.weight",
            "classifier.{w}": "cls.output.{w}",
        }, dropped=("decoder.{w}",),
        special=lambda h, ids: {"add_bos?": True, "add_eos?": True, "add_sep?": True},
        )  # fmt: skip
def modern_bert(h: Hyper, k: Keys) -> None:
    """ModernBERT (Warner et al. 2024): gated units, symmetric windows between global layers."""
    h.must_be("hidden_activation", "gelu", "silu")
    h.must_be("classifier_activation", "gelu")
    h.must_be("classifier_pooling", "cls", "mean")
    _sizes(h, k, h.integer("max_position_embeddings"))
    k.f32("attention.layer_norm_epsilon", h.number("norm_eps", "layer_norm_eps", default=1e-5))
    k.f32("rope.freq_base", 160000.0)  # those of its class, where nothing else is said
    k.f32("rope.freq_base_swa", 10000.0)
    rotation(h, k)
    k.u32("attention.sliding_window", h.integer("local_attention"))
    k.u32("attention.sliding_window_pattern", _global_period(h))
    k.text("rope.scaling.type", "none")
    k.u32("vocab_size", h.integer("vocab_size"))
    if h.get("hidden_activation") is not None:
        k.text("hidden_activation", h.get("hidden_activation"))
    _label_keys(h, k)


@family("EuroBertModel", arch="eurobert", rules=bare(PLAIN),
        special=lambda h, ids: {"add_bos?": False})  # fmt: skip
def eurobert(h: Hyper, k: Keys) -> None:
    """EuroBERT (Boizard et al. 2025): a Llama that looks both ways."""
    h.must_be("hidden_act", "silu")
    common(h, k)
    k.flag("attention.causal", False)
    k.text("rope.scaling.type", "none")
    pooling(h, k)
