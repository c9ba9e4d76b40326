"""Masked diffusion: every row sees the whole text, in which masks are filled in step by step. LLaDA
(Nie et al. 2025, "Large Language Diffusion Models") is built like Llama, Dream (Ye et al. 2025)
like Qwen 2, LLaDA-MoE (inclusionAI 2025) and RND1 (Radical Numerics 2025) like Qwen 3 with experts.
"""

from oxillama.model.arch.llama import llama
from oxillama.model.arch.qwen import qwen2
from oxillama.model.blocks import routing_of, sparse_decoder
from oxillama.model.builder import Builder, Value, architecture


@architecture("llada")
def llada(b: Builder) -> Value:
    """Files say of it, and of LLaDA-MoE, that rows predict their own token."""
    b.fill_masks()
    return llama(b)


@architecture("dream")
def dream(b: Builder) -> Value:
    """Made of Qwen 2.5: a row predicts the token after it, as there."""
    b.fill_masks()
    return qwen2(b)


@architecture("llada-moe")
def llada_moe(b: Builder) -> Value:
    """The weights of experts are those of a softmax over all."""
    b.fill_masks()
    return sparse_decoder(b, style="neox", qk_norm="heads", **routing_of(b))


@architecture("rnd1")
def rnd1(b: Builder) -> Value:
    """Made of Qwen 3 30B-A3B: the weights of the chosen experts sum to 1."""
    b.fill_masks()
    return sparse_decoder(b, style="neox", qk_norm="heads", **routing_of(b, normalise=True))
