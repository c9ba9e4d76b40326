"""Recipes give each tensor of a model the format that users of GGUF files expect under that
name.
"""

import pytest
from gguf import LlamaFileType

from oxillama.errors import QuantError
from oxillama.quant import RECIPES, formats
from oxillama.quant.recipes import (
    FALLBACKS,
    TensorContext,
    choose,
    fitting,
    is_kept,
    layer_of,
    recipe_name,
    recipe_named,
    roles_of,
)

LAYERS = 32
KEPT = """
    time_mix_first time_mix_lerp_fused time_mix_w0 time_mix_w1 time_mix_w2 time_mix_v0 time_mix_v1
    time_mix_v2 time_mix_a0 time_mix_a1 time_mix_a2 time_mix_g1 time_mix_g2 time_mix_decay_w1
    time_mix_decay_w2 indexer.k_proj indexer.q_proj ffn_gate_tid2eid rel_pos patch_embd patch_merger
    position_embd shortconv.conv altup_router laurel_l
"""
CHANGED = """
    time_mix_key time_mix_receptance time_mix_value time_mix_gate time_mix_output time_mix_g0
    time_mix_decay channel_mix_key indexer.attn_k indexer.proj ffn_gate_inp_shexp shortconv.in_proj
    ssm_in cross_attn_rel
"""


def context(
    layer=10,
    before=None,
    grouping=1,
    experts=0,
    has_imatrix=False,
    tied=False,
    large=False,
    arch="",
):
    return TensorContext(
        layer,
        LAYERS,
        layer if before is None else before,
        grouping,
        experts,
        has_imatrix,
        tied,
        large,
        arch,
    )


def chosen(recipe, name, columns=4096, pure=False, **where):
    return choose(name, columns, recipe_named(recipe), context(**where), pure=pure)


def test_every_format_named_is_one_and_numbers_tell_recipes_apart():
    for recipe in (recipe for name, recipe in RECIPES.items() if name != "COPY"):
        assert {
            recipe.base,
            recipe.output,
            recipe.embedding or recipe.base,
            *(rule.format for rule in recipe.rules),
        } <= set(formats())
    numbers = [recipe.file_type for recipe in RECIPES.values()]
    assert len(set(numbers)) == len(numbers)


def test_file_types_are_those_of_the_gguf_package():
    for name, recipe in RECIPES.items():
        wanted = "ALL_F32" if name == "F32" else f"MOSTLY_{name}"
        if hasattr(LlamaFileType, wanted):
            assert recipe.file_type == LlamaFileType[wanted], name


def test_every_name_that_users_of_gguf_files_know_is_a_recipe():
    known = """
    F32 F16 BF16 COPY Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q2_K_S Q3_K Q3_K_S Q3_K_M Q3_K_L Q4_K Q4_K_S
    Q4_K_M Q5_K Q5_K_S Q5_K_M Q6_K IQ1_S IQ1_M IQ2_XXS IQ2_XS IQ2_S IQ2_M IQ3_XXS IQ3_XS IQ3_S IQ3_M
    IQ4_NL IQ4_XS TQ1_0 TQ2_0 MXFP4_MOE NVFP4 Q1_0 Q2_0
    """
    for name in known.split():
        assert recipe_named(name)


def test_q4_k_m_gives_more_bits_to_first_last_and_every_third_layer():
    for tensor in ("attn_v", "ffn_down"):
        more = [
            layer
            for layer in range(LAYERS)
            if chosen("Q4_K_M", f"blk.{layer}.{tensor}.weight", layer=layer) == "Q6_K"
        ]
        assert more == [0, 1, 2, 3, 6, 9, 12, 15, 18, 21, 24, 27, 28, 29, 30, 31]
    assert chosen("Q4_K_M", "blk.3.attn_q.weight", layer=3) == "Q4_K"
    assert chosen("Q4_K_M", "output.weight") == "Q6_K"
    assert chosen("Q4_K_M", "token_embd.weight") == "Q4_K"
    assert chosen("Q4_K_M", "token_embd.weight", tied=True) == "Q6_K"


@pytest.mark.parametrize(
    "recipe, name, where, wanted",
    [
        ("Q4_K_S", "blk.3.attn_v.weight", {"layer": 3}, "Q5_K"),
        ("Q4_K_S", "blk.4.attn_v.weight", {"layer": 4}, "Q4_K"),
        ("Q4_K_S", "blk.3.ffn_down.weight", {"layer": 3}, "Q5_K"),
        ("Q5_K_M", "blk.0.ffn_down.weight", {"layer": 0}, "Q6_K"),
        ("Q5_K_S", "blk.0.ffn_down.weight", {"layer": 0}, "Q5_K"),
        ("Q3_K_M", "blk.1.attn_v.weight", {"layer": 1}, "Q5_K"),
        ("Q3_K_M", "blk.2.attn_v.weight", {"layer": 2}, "Q4_K"),
        ("Q3_K_M", "blk.2.attn_output.weight", {"layer": 2}, "Q4_K"),
        ("Q3_K_L", "blk.2.ffn_down.weight", {"layer": 2}, "Q5_K"),
        ("Q3_K_S", "blk.2.ffn_down.weight", {"layer": 2}, "Q3_K"),
        ("Q2_K", "blk.9.attn_v.weight", {}, "Q3_K"),
        ("Q2_K", "blk.9.attn_v.weight", {"grouping": 4}, "Q4_K"),
        ("IQ2_XXS", "token_embd.weight", {}, "Q2_K"),
        ("IQ2_XXS", "output.weight", {}, "Q5_K"),
        ("IQ1_S", "blk.9.attn_output.weight", {}, "IQ2_XXS"),
        ("IQ2_M", "blk.0.ffn_down.weight", {"layer": 0}, "IQ3_S"),
        ("IQ3_XS", "blk.9.ffn_up.weight", {}, "IQ3_XXS"),
        ("IQ3_XS", "blk.0.ffn_up.weight", {"layer": 0}, "IQ3_S"),
        ("IQ4_XS", "blk.0.ffn_down.weight", {"layer": 0}, "Q5_K"),
        ("IQ4_XS", "blk.0.ffn_down.weight", {"layer": 0, "has_imatrix": True}, "IQ4_XS"),
        ("Q4_0", "blk.0.ffn_down.weight", {"layer": 0, "has_imatrix": True}, "Q4_1"),
        ("Q4_0", "output.weight", {}, "Q6_K"),
        ("Q8_0", "output.weight", {}, "Q8_0"),
        ("F16", "token_embd.weight", {}, "F16"),
        ("TQ2_0", "token_embd.weight", {}, "Q4_K"),
        ("Q4_K_M", "blk.9.attn_k.weight", {"experts": 8}, "Q8_0"),
        ("Q4_K_M", "blk.9.ffn_down_exps.weight", {"layer": 31}, "Q6_K"),
        ("MXFP4_MOE", "blk.9.ffn_down_exps.weight", {}, "MXFP4"),
        ("MXFP4_MOE", "blk.9.ffn_down.weight", {}, "Q8_0"),
        ("MXFP4", "blk.9.ffn_down.weight", {}, "Q8_0"),
        ("MXFP4", "blk.9.ffn_down_exps.weight", {}, "MXFP4"),
        ("Q1_0", "token_embd.weight", {}, "Q1_0"),
        ("Q4_K", "blk.0.attn_v.weight", {"layer": 0}, "Q6_K"),
        ("Q4_K_M", "blk.0.attn_qkv.weight", {"layer": 0}, "Q6_K"),
        ("Q4_K_M", "blk.9.attn_qkv.weight", {"layer": 10}, "Q4_K"),
        ("Q2_K", "blk.9.attn_qkv.weight", {}, "Q3_K"),
        ("Q4_K_M", "blk.0.attn_v_b.weight", {"layer": 0}, "Q4_K"),
        ("Q3_K_L", "blk.9.attn_output.weight", {}, "Q5_K"),
        ("Q3_K_L", "blk.9.attn_output.weight", {"experts": 8}, "Q3_K"),
        ("TQ1_0", "blk.9.attn_v.weight", {"experts": 8}, "Q8_0"),
        ("IQ2_XXS", "output.weight", {"columns": 288}, "Q8_0"),
        ("IQ2_XXS", "token_embd.weight", {"columns": 288, "tied": True}, "Q8_0"),
        ("Q1_0_G128", "blk.0.attn_v.weight", {}, "Q1_0"),
        (
            "IQ2_XXS",
            "blk.3.ffn_down_exps.weight",
            {"layer": 3, "before": 4, "experts": 4},
            "IQ2_XXS",
        ),
        ("Q4_K_M", "per_layer_token_embd.weight", {}, "Q4_K"),
        ("Q4_K_M", "per_layer_token_embd.weight", {"tied": True}, "Q6_K"),
        ("Q2_0", "per_layer_token_embd.weight", {}, "Q4_K"),
        ("Q4_K_S", "blk.9.attn_v.weight", {"large": True}, "Q5_K"),
        ("Q3_K_S", "blk.9.attn_v.weight", {"large": True}, "Q5_K"),
        ("Q4_K_M", "blk.0.attn_v.weight", {"layer": 0, "large": True}, "Q6_K"),
        ("Q2_K", "blk.9.attn_qkv.weight", {"large": True}, "Q5_K"),
        ("Q2_K_S", "blk.9.attn_v.weight", {"large": True}, "Q2_K"),
        ("IQ2_XXS", "blk.9.attn_v.weight", {"grouping": 8, "large": True}, "Q4_K"),
        ("Q4_K_M", "blk.9.attn_v.weight", {"experts": 8, "large": True}, "Q8_0"),
        ("Q4_K_S", "blk.9.attn_q.weight", {"large": True}, "Q4_K"),
        ("MXFP4_MOE", "token_embd.weight", {}, "Q8_0"),
    ],
)
def test_known_mixtures(recipe, name, where, wanted):
    assert chosen(recipe, name, **where) == wanted


def test_pure_leaves_the_rules_out():
    for name in ("output.weight", "token_embd.weight", "blk.0.attn_v.weight"):
        assert chosen("Q4_K_M", name, pure=True, layer=0) == "Q4_K"
        assert chosen("MXFP4_MOE", name, pure=True, layer=0) == "MXFP4"


@pytest.mark.parametrize(
    "wanted, columns, found",
    [
        ("Q4_K", 512, "Q4_K"),
        ("Q4_K", 320, "Q5_0"),
        ("Q5_K", 320, "Q5_1"),
        ("Q6_K", 320, "Q8_0"),
        ("Q2_K", 320, "Q4_0"),
        ("Q3_K", 320, "Q4_0"),
        ("IQ2_XS", 320, "IQ4_NL"),
        ("IQ4_XS", 96, "IQ4_NL"),
        ("TQ1_0", 96, "Q4_0"),
        ("Q1_0", 192, "Q4_0"),
        ("NVFP4", 96, "Q4_0"),
        ("Q4_K", 48, "F16"),
        ("MXFP4", 48, "F16"),
        ("Q8_0", 33, "F16"),
        ("F32", 33, "F32"),
        ("BF16", 33, "BF16"),
    ],
)
def test_rows_that_fill_no_blocks_fall_back(wanted, columns, found):
    assert fitting(wanted, columns) == found


def test_every_fallback_has_smaller_blocks():
    for name, other in FALLBACKS.items():
        assert formats()[other].columns < formats()[name].columns
        assert other in FALLBACKS or formats()[other].columns == 32


@pytest.mark.parametrize(
    "name, shape, kept",
    [
        ("blk.0.attn_q.weight", (64, 64), False),
        ("output.weight", (512, 64), False),
        ("blk.0.ffn_up_exps.weight", (4, 64, 64), False),
        ("blk.0.attn_norm.weight", (64,), True),
        ("blk.0.attn_q.bias", (64,), True),
        ("blk.0.ssm_norm.weight", (2, 128), True),
        ("blk.0.ffn_gate_inp.weight", (4, 64), True),
        ("blk.0.ssm_conv1d.weight", (384, 4), True),
        ("blk.0.ssm_a", (8, 64), True),
        ("blk.0.ffn_down_exps.bias", (4, 64), True),
        ("blk.0.ssm_dt.weight", (128, 8), True),
        ("position_embd.weight", (512, 64), True),
        ("cls.output.weight", (1, 64), True),
        ("blk.0.channel_mix_lerp_k.weight", (1, 1, 64), True),
        ("a.weight", (4, 1, 64), False),
        ("dec.blk.0.attn_rel_b.weight", (64, 64), True),
        ("my_position_embd.weight", (64, 64), False),
    ],
)
def test_norms_vectors_and_small_tensors_are_kept(name, shape, kept):
    assert is_kept(name, shape) is kept


def test_glm5_next_keeps_small_matrices_and_eight_bits_of_others():
    """As llama.cpp has it; of layers that predict further tokens, what joins their two inputs."""
    kept = """
        hc_attn_fn indexer.attn_q_b indexer.attn_k indexer.proj indexer_compressor_gate ssm_f_a
        ssm_g_b ssm_beta attn_kv_a_mqa attn_k_b attn_v_b
    """
    for part in kept.split():
        name = f"blk.1.{part}.weight"
        assert is_kept(name, (64, 64), "glm5-next") and not is_kept(name, (64, 64), "glm-dsa")
    for name in ("attn_q_a", "attn_q_b", "nextn.eh_proj"):
        for recipe in ("Q4_K_M", "Q6_K", "IQ2_XS", "MXFP4_MOE"):
            where = dict(arch="glm5-next", experts=8)
            assert chosen(recipe, f"blk.3.{name}.weight", **where) == "Q8_0"
        assert chosen("BF16", f"blk.3.{name}.weight", arch="glm5-next") == "BF16"
        assert chosen("Q4_K_M", f"blk.3.{name}.weight", pure=True, arch="glm5-next") == "Q4_K"
        assert chosen("Q4_K_M", f"blk.3.{name}.weight", arch="glm-dsa") == "Q4_K"
    assert chosen("Q4_K_M", "blk.3.nextn.embed_tokens.weight", arch="glm5-next") == "Q4_K"
    assert chosen("Q4_K_M", "blk.3.nextn.shared_head_head.weight", arch="glm5-next") == "Q4_K"


def test_small_matrices_are_kept_by_their_names_and_their_large_neighbours_are_not():
    kept, changed = KEPT.split(), CHANGED.split()
    assert [name for name in kept if not is_kept(f"blk.0.{name}.weight", (64, 64))] == []
    assert [name for name in changed if is_kept(f"blk.0.{name}.weight", (64, 64))] == []
    whole = (
        "sam.neck.0.weight",
        "sam.net_2.weight",
        "sam.pos_embd.weight",
        "a.rvq.codebook.weight",
        "mm.a.code_embd.weight",
        "token_types.weight",
    )
    assert [name for name in whole if not is_kept(name, (64, 64))] == []


def test_roles_are_read_from_names():
    assert roles_of("blk.7.ffn_gate_exps.weight") == ("experts", "ffn_gate")
    assert roles_of("blk.7.ffn_down_shexp.weight") == ("ffn_down",)
    assert roles_of("blk.7.attn_kv_b.weight") == ("attn_v",)
    assert roles_of("blk.7.ssm_in.weight") == ()
    assert roles_of("enc.blk.7.ffn_down.weight") == ("ffn_down",)
    assert (
        roles_of("dec.blk.7.cross_attn_v.weight")
        == roles_of("v.blk.7.attn_v.weight")
        == ("attn_v",)
    )
    assert roles_of("per_layer_token_embd.weight") == ("embedding",)
    assert roles_of("dec.output.weight") == roles_of("blk.7.attn_kv_a_mqa.weight") == ()
    assert (layer_of("blk.17.attn_v.weight"), layer_of("dec.blk.17.attn_v.weight")) == (17, None)


def test_names_are_taken_in_any_case():
    assert all(
        recipe_named(name.lower()) is recipe_named(name.title()) is recipe
        for name, recipe in RECIPES.items()
    )
    assert recipe_named("q4_k") is RECIPES["Q4_K_M"]


@pytest.mark.parametrize(
    "number, name",
    [("0", "F32"), ("2", "Q4_0"), ("15", "Q4_K_M"), ("30", "IQ4_XS"), ("38", "MXFP4_MOE")],
)
def test_a_file_type_s_number_names_its_recipe(number, name):
    assert recipe_name(number) == name and recipe_named(number) is RECIPES[name]


@pytest.mark.parametrize("name", ["Q4_K_XL", "q4_k_xl", None, "", "4", "None", "015", 15])
def test_an_unknown_recipe_is_named_beside_the_known_ones(name):
    with pytest.raises(
        QuantError, match="unknown recipe .*wanted one of F32, F16, BF16, Q4_0.*Q4_K_M"
    ):
        recipe_named(name)
