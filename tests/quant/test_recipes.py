"""Recipes give each tensor of a model the format that users of GGUF files expect under that name."""
import pytest
from gguf import LlamaFileType

from oxillama.errors import QuantError
from oxillama.quant import RECIPES, formats
from oxillama.quant.recipes import FALLBACKS, Place, choose, fitting, is_kept, recipe_named, roles_of

LAYERS = 32


def place(layer=10, grouping=1, experts=0, has_imatrix=False, tied=False):
    return Place(layer, LAYERS, grouping, experts, has_imatrix, tied)


def chosen(recipe, name, columns=4096, pure=False, **where):
    return choose(name, columns, recipe_named(recipe), place(**where), pure=pure)


def test_every_format_named_is_one_and_numbers_tell_recipes_apart():
    for recipe in (recipe for name, recipe in RECIPES.items() if name != "COPY"):
        assert {recipe.base, recipe.output, recipe.embedding or recipe.base, *(rule.format for rule in recipe.rules)} <= set(formats())
    numbers = [recipe.file_type for name, recipe in RECIPES.items() if name != "MXFP4_MOE"]
    assert len(set(numbers)) == len(numbers)


def test_file_types_are_those_of_the_gguf_package():
    for name, recipe in RECIPES.items():
        wanted = "ALL_F32" if name == "F32" else "MOSTLY_MXFP4_MOE" if name == "MXFP4" else f"MOSTLY_{name}"
        if hasattr(LlamaFileType, wanted):
            assert recipe.file_type == LlamaFileType[wanted], name


def test_every_name_that_users_of_gguf_files_know_is_a_recipe():
    known = """F32 F16 BF16 COPY Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q2_K_S Q3_K Q3_K_S Q3_K_M Q3_K_L Q4_K Q4_K_S Q4_K_M Q5_K Q5_K_S Q5_K_M Q6_K
        IQ1_S IQ1_M IQ2_XXS IQ2_XS IQ2_S IQ2_M IQ3_XXS IQ3_XS IQ3_S IQ3_M IQ4_NL IQ4_XS TQ1_0 TQ2_0 MXFP4_MOE NVFP4 Q1_0 Q2_0"""
    for name in known.split():
        assert recipe_named(name)


def test_q4_k_m_gives_more_bits_to_first_last_and_every_third_layer():
    for tensor in ("attn_v", "ffn_down"):
        more = [layer for layer in range(LAYERS) if chosen("Q4_K_M", f"blk.{layer}.{tensor}.weight", layer=layer) == "Q6_K"]
        assert more == [0, 1, 2, 3, 6, 9, 12, 15, 18, 21, 24, 27, 28, 29, 30, 31]
    assert chosen("Q4_K_M", "blk.3.attn_q.weight", layer=3) == "Q4_K"
    assert chosen("Q4_K_M", "output.weight") == "Q6_K"
    assert chosen("Q4_K_M", "token_embd.weight") == "Q4_K"
    assert chosen("Q4_K_M", "token_embd.weight", tied=True) == "Q6_K"


@pytest.mark.parametrize("recipe, name, where, wanted", [
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
    ("MXFP4", "blk.9.ffn_down.weight", {}, "MXFP4"),
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
])
def test_known_mixtures(recipe, name, where, wanted):
    assert chosen(recipe, name, **where) == wanted


def test_pure_leaves_the_rules_out():
    for name in ("output.weight", "token_embd.weight", "blk.0.attn_v.weight"):
        assert chosen("Q4_K_M", name, pure=True, layer=0) == "Q4_K"


@pytest.mark.parametrize("wanted, columns, found", [
    ("Q4_K", 512, "Q4_K"), ("Q4_K", 320, "Q5_0"), ("Q5_K", 320, "Q5_1"), ("Q6_K", 320, "Q8_0"), ("Q2_K", 320, "Q4_0"),
    ("Q3_K", 320, "Q4_0"), ("IQ2_XS", 320, "IQ4_NL"),
    ("IQ4_XS", 96, "IQ4_NL"), ("TQ1_0", 96, "Q4_0"), ("Q1_0", 192, "Q4_0"), ("NVFP4", 96, "Q4_0"), ("Q4_K", 48, "F16"),
    ("MXFP4", 48, "F16"),
    ("Q8_0", 33, "F16"), ("F32", 33, "F32"), ("BF16", 33, "BF16"),
])
def test_rows_that_fill_no_blocks_fall_back(wanted, columns, found):
    assert fitting(wanted, columns) == found


def test_every_fallback_has_smaller_blocks():
    for name, other in FALLBACKS.items():
        assert formats()[other].columns < formats()[name].columns
        assert other in FALLBACKS or formats()[other].columns == 32


@pytest.mark.parametrize("name, shape, kept", [
    ("blk.0.attn_q.weight", (64, 64), False), ("output.weight", (512, 64), False), ("blk.0.ffn_up_exps.weight", (4, 64, 64), False),
    ("blk.0.attn_norm.weight", (64,), True), ("blk.0.attn_q.bias", (64,), True), ("blk.0.ssm_norm.weight", (2, 128), True),
    ("blk.0.ffn_gate_inp.weight", (4, 64), True), ("blk.0.ssm_conv1d.weight", (384, 4), True), ("blk.0.ssm_a", (8, 64), True),
    ("blk.0.ffn_down_exps.bias", (4, 64), True), ("blk.0.ssm_dt.weight", (128, 8), True), ("position_embd.weight", (512, 64), True),
])
def test_norms_vectors_and_small_tensors_are_kept(name, shape, kept):
    assert is_kept(name, shape) is kept


def test_roles_are_read_from_names():
    assert roles_of("blk.7.ffn_gate_exps.weight") == ("experts", "ffn_gate")
    assert roles_of("blk.7.ffn_down_shexp.weight") == ("ffn_down",)
    assert roles_of("blk.7.attn_kv_b.weight") == ("attn_v",)
    assert roles_of("blk.7.ssm_in.weight") == ()


def test_names_are_taken_in_any_case():
    assert all(recipe_named(name.lower()) is recipe_named(name.title()) is recipe for name, recipe in RECIPES.items())
    assert recipe_named("q4_k") is RECIPES["Q4_K_M"]


@pytest.mark.parametrize("name", ["Q4_K_XL", "q4_k_xl", None, ""])
def test_an_unknown_recipe_is_named_beside_the_known_ones(name):
    with pytest.raises(QuantError, match="unknown recipe .*wanted one of F32, F16, BF16, Q4_0.*Q4_K_M"):
        recipe_named(name)
