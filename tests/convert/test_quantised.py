"""Quantised folders against folders of the floats that they stand for.

Each test quantises the matrices of a tiny Llama here, number by number, and says what float32 each
number is. The file of the quantised folder must then be that of a folder with these floats.
"""

import json
import re
import shutil
import tracemalloc
from types import SimpleNamespace

import numpy as np
import pytest

import oxillama
import oxillama.convert.quantised as quantised_weights
from oxillama.convert import convert_folder
from oxillama.convert.family import Hyper, Rule
from oxillama.convert.quantised import dequantised
from oxillama.convert.safetensors import StoredTensor, read_safetensors
from oxillama.convert.shapes import halves
from oxillama.convert.tensor_plan import join, single, stack
from oxillama.errors import ConvertError
from oxillama.gguf import GgufReader
from oxillama.model import load_model
from oxillama.quant import dequantize
from tests.convert.folders import folder_of, golden_of, save
from tests.model.stepping import logits

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_hidden_layers": 1,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-6,
    "vocab_size": 32,
    "rope_theta": 10000.0,
    "dtype": "bfloat16",
}
SHAPES = {
    "self_attn.q_proj": (64, 64),
    "self_attn.k_proj": (64, 64),
    "self_attn.v_proj": (64, 64),
    "self_attn.o_proj": (64, 64),
    "mlp.gate_proj": (96, 64),
    "mlp.up_proj": (96, 64),
    "mlp.down_proj": (64, 96),
}
MODULES = [f"model.layers.0.{name}" for name in SHAPES]
E2M1 = [0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6]


def e4m3(code):
    """The number of an 8-bit float of 4 bits of exponent."""
    code = int(code)
    sign, exponent, fraction = -1.0 if code & 128 else 1.0, code >> 3 & 15, code & 7
    if exponent == 0:
        return sign * fraction / 8 * 2.0**-6
    return sign * (1 + fraction / 8) * 2.0 ** (exponent - 7)


def bf16(values):
    """The nearest bfloat16 numbers, as bits."""
    return StoredTensor("F32", np.asarray(values, np.float32)).as_type("BF16")


def of_bf16(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)


def plain():
    """What is not quantised: norms, the embedding and the head."""
    random = np.random.default_rng(1)
    named = {f"model.layers.0.{one}_layernorm.weight": (64,) for one in ("input", "post_attention")}
    named |= {"model.norm.weight": (64,)}
    named |= {"model.embed_tokens.weight": (32, 64), "lm_head.weight": (32, 64)}
    return {name: ("BF16", bf16(random.normal(size=shape))) for name, shape in named.items()}


def folder(place, tensors, **config):
    place.mkdir()
    (place / "config.json").write_text(json.dumps({**CONFIG, **config}))
    save(place / "model.safetensors", tensors)
    return place


def scaled(codes, scales, height, width, zeros=None):
    """(code - zero point) * scale, number by number."""
    rows, columns = codes.shape
    made = np.empty(codes.shape, np.float32)
    for r in range(rows):
        for c in range(columns):
            at = r // height, c // width
            code = np.float32(codes[r, c]) - np.float32(0 if zeros is None else zeros[at])
            made[r, c] = code * np.float32(scales[at])
    return made


def quantised(quantise, modules=MODULES):
    """(stored tensors, floats by name) of the matrices. quantise(module, shape, random) gives the
    parts of a module and its floats.
    """
    random = np.random.default_rng(2)
    stored, floats = {}, {}
    for module, shape in zip(modules, SHAPES.values()):
        parts, floats[f"{module}.weight"] = quantise(module, shape, random)
        stored |= {f"{module}.{name}": part for name, part in parts.items()}
    return stored, floats


def same(found, wanted):
    """Whether two files have the same tensors."""
    ours, theirs = GgufReader(found), GgufReader(wanted)
    assert set(ours.tensors) == set(theirs.tensors)
    for name, info in theirs.tensors.items():
        assert ours.tensors[name].type_name == info.type_name, name
        assert ours.tensors[name].shape == info.shape, name
        assert np.array_equal(ours.data(name), theirs.data(name)), name
    return ours


def checked(tmp_path, stored, floats, said, kept="BF16", **config):
    """Converts a quantised folder in three ways, and folders of floats that must give the same.
    kept: the type, or that of each module, of a file that is asked for no type.
    """
    whole = folder(
        tmp_path / "quantised", {**plain(), **stored}, quantization_config=said, **config
    )
    exact = {name: ("F32", values) for name, values in floats.items()}
    near = {name: ("BF16", bf16(values)) for name, values in floats.items()}
    twins = {"F32": exact, "auto": near, "Q5_0": exact}
    for kind, twin in twins.items():
        other = folder(tmp_path / f"float-{kind}", {**plain(), **twin}, **config)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(quantised_weights, "_AT_ONCE", 500)  # 7 or 5 rows at a time
            made = convert_folder(whole, tmp_path / f"{kind}.gguf", kind, name="tiny").path
        wanted = convert_folder(other, tmp_path / f"{kind}-float.gguf", kind, name="tiny").path
        if kind != "auto" or kept == "BF16":
            same(made, wanted)
    made, wanted = GgufReader(tmp_path / "auto.gguf"), GgufReader(tmp_path / "F32.gguf")
    ours = ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"]
    for name, module in zip(ours, MODULES):
        kind = kept[module] if isinstance(kept, dict) else kept
        name = f"blk.0.{name}.weight"
        assert made.tensors[name].type_name == kind, name
        if kind != "BF16":
            assert np.array_equal(numbers_of(made, name), numbers_of(wanted, name)), name
    rows = [
        logits(load_model(GgufReader(tmp_path / name)), np.arange(9, dtype=np.int32))
        for name in ("auto.gguf", "auto-float.gguf")
    ]
    if kept == "BF16":
        assert np.array_equal(*rows)


def numbers_of(reader, name):
    """A tensor's float32 numbers, whatever its type."""
    info = reader.tensors[name]
    if info.type_name == "F32":
        return reader.data(name).view(np.float32).reshape(info.shape)
    rows = reader.data(name).reshape(*info.shape[:-1], -1)
    return dequantize(rows, info.type_name)


def refused(tmp_path, stored, said, *words, **config):
    place = folder(
        tmp_path / "quantised", {**plain(), **stored}, quantization_config=said, **config
    )
    with pytest.raises(ConvertError) as caught:
        convert_folder(place, tmp_path / "out.gguf")
    for word in words:
        assert word in str(caught.value)
    assert [one.name for one in tmp_path.iterdir()] == ["quantised"]
    for one in place.iterdir():
        one.unlink()
    place.rmdir()


# ---- fp8 -----------------------------------------------------------------------------------------

BLOCKS = {"quant_method": "fp8", "weight_block_size": [16, 40], "activation_scheme": "dynamic"}


def codes8(random, shape):
    codes = random.integers(0, 256, shape, np.uint8)
    codes[codes & 127 == 127] = 3  # no NaN
    return codes


def scales_of(random, shape, kind):
    """(as stored, as numbers)."""
    values = np.exp(random.normal(size=shape)).astype(np.float32) / 300
    if kind == "F8_E8M0":
        powers = random.integers(110, 121, shape).astype(np.uint8)
        return (kind, powers), np.exp2(powers.astype(np.float64) - 127).astype(np.float32)
    if kind == "BF16":
        return (kind, bf16(values)), of_bf16(bf16(values))
    if kind == "F16":
        return (kind, values.astype(np.float16)), values.astype(np.float16).astype(np.float32)
    return (kind, values), values


def fp8_blocks(kind, suffix):
    def quantise(module, shape, random):
        codes = codes8(random, shape)
        grid = -(-shape[0] // 16), -(-shape[1] // 40)
        stored, scales = scales_of(random, grid, kind)
        parts = {"weight": ("F8_E4M3", codes), suffix: stored}
        return parts, scaled(np.vectorize(e4m3)(codes), scales, 16, 40)

    return quantised(quantise)


@pytest.mark.parametrize(
    ("kind", "suffix"),
    [
        ("F32", "weight_scale_inv"),
        ("BF16", "weight_scale_inv"),
        ("F8_E8M0", "weight_scale_inv"),
        ("F8_E8M0", "scale"),
    ],
)
def test_fp8_in_blocks_is_code_times_scale(kind, suffix, tmp_path):
    checked(tmp_path, *fp8_blocks(kind, suffix), BLOCKS)


def fp8_whole(weight="weight_scale_inv", shape=(), activation="activation_scale"):
    def quantise(module, size, random):
        codes = codes8(random, size)
        scale = np.float32(random.uniform(0.001, 0.01))
        parts = {"weight": ("F8_E4M3", codes), weight: ("F32", np.full(shape, scale))}
        parts[activation] = ("F32", np.float32(3))
        return parts, (np.vectorize(e4m3)(codes).astype(np.float32) * scale)

    return quantised(quantise)


@pytest.mark.parametrize(
    "names",
    [("weight_scale_inv", (), "activation_scale"), ("weight_scale", (1,), "input_scale")],
)
def test_fp8_with_one_scale_for_all(names, tmp_path):
    """Static scales of activations, keys and values are dropped."""
    stored, floats = fp8_whole(*names)
    for name in ("k_scale", "v_scale"):
        stored[f"model.layers.0.self_attn.{name}"] = ("F32", np.float32(2))
    said = {"quant_method": "fp8", "weight_block_size": None, "activation_scheme": "static"}
    checked(tmp_path, stored, floats, said)


def test_fbgemm_has_a_scale_for_each_row(tmp_path):
    def quantise(module, shape, random):
        codes = codes8(random, shape)
        stored, scales = scales_of(random, (shape[0], 1), "F32")
        parts = {"weight": ("F8_E4M3", codes), "weight_scale": stored}
        return parts, scaled(np.vectorize(e4m3)(codes), scales, 1, shape[1])

    stored, floats = quantised(quantise)
    said = {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0}
    (tmp_path / "good").mkdir()
    checked(tmp_path / "good", stored, floats, said)
    name = f"{MODULES[0]}.weight_scale"
    short = {**stored, name: ("F32", np.ones((3, 1), np.float32))}
    (tmp_path / "bad").mkdir()
    refused(tmp_path / "bad", short, said, f"{name}: shape [3, 1]")


def test_modules_that_are_not_quantised_stay_as_they_are(tmp_path):
    stored, floats = fp8_blocks("F32", "weight_scale_inv")
    name = "model.layers.0.mlp.down_proj.weight"
    del stored[f"{name}_scale_inv"]
    floats[name] = of_bf16(bf16(floats[name]))
    stored[name] = ("BF16", bf16(floats[name]))
    checked(tmp_path, stored, floats, {**BLOCKS, "modules_to_not_convert": [name[:-7]]})


def test_all_codes_of_an_8_bit_float_are_read():
    found = StoredTensor("F8_E4M3", np.arange(256, dtype=np.uint8)).floats()
    wanted = np.array([e4m3(code) for code in range(256)], np.float32)
    wanted[[127, 255]] = np.nan
    assert np.array_equal(found, wanted, equal_nan=True)
    assert np.array_equal(np.signbit(found[:255]), np.signbit(wanted[:255]))
    powers = StoredTensor("F8_E8M0", np.arange(256, dtype=np.uint8)).floats()
    assert [float(one) for one in powers[:255]] == [2.0 ** (at - 127) for at in range(255)]
    assert np.isnan(powers[255])


def test_a_dtype_that_is_not_named_is_bfloat16_and_another_is_kept(tmp_path):
    stored, floats = fp8_blocks("F32", "weight_scale_inv")
    config = {**CONFIG, "quantization_config": BLOCKS}
    name = "model.layers.0.mlp.up_proj.weight"
    for named, kind in ((None, "BF16"), ("float16", "F16"), ("float32", "F32")):
        place = folder(tmp_path / kind, {**plain(), **stored}, **{**config, "dtype": named})
        made = GgufReader(convert_folder(place, tmp_path / f"{kind}.gguf").path)
        assert made.tensors["blk.0.ffn_up.weight"].type_name == kind
        wanted = StoredTensor("F32", floats[name]).as_type(kind)
        assert made.data("blk.0.ffn_up.weight").tobytes() == wanted.tobytes()
    (tmp_path / "other").mkdir()
    refused(tmp_path / "other", stored, BLOCKS, "dtype: found 'int8'", dtype="int8")


def test_fp8_that_does_not_fit_together_is_refused(tmp_path):
    stored, _ = fp8_blocks("F32", "weight_scale_inv")
    name = "model.layers.0.mlp.up_proj.weight"
    scale = f"{name}_scale_inv"

    def without(*names):
        return {key: one for key, one in stored.items() if key not in names}

    refused(tmp_path, without(scale), BLOCKS, name, f"found no {scale}")
    refused(tmp_path, without(name), BLOCKS, scale, "without the weight")
    refused(tmp_path, {**stored, scale: ("I32", np.ones((6, 2), np.int32))}, BLOCKS, scale, "I32")
    other = {**stored, scale: ("F32", np.ones((5, 2), np.float32))}
    refused(tmp_path, other, BLOCKS, scale, "shape [5, 2], wanted [6, 2]")
    whole = {**BLOCKS, "weight_block_size": None}
    refused(tmp_path, stored, whole, "shape [4, 2], wanted []")
    refused(tmp_path, stored, {**BLOCKS, "weight_block_size": [16]}, "weight_block_size")
    refused(tmp_path, stored, {**BLOCKS, "weight_block_size": [16, 0]}, "positive integer")
    refused(tmp_path, stored, {**BLOCKS, "fmt": "e5m2"}, "fmt: found 'e5m2'")
    refused(tmp_path, stored, {**BLOCKS, "scale_fmt": "new"}, "scale_fmt: found 'new'")
    floats = {
        key: ("BF16", bf16(np.ones(SHAPES[key[15:-7]]))) for key in stored if "inv" not in key
    }
    refused(tmp_path, floats, BLOCKS, "found fp8, and no weight that is so stored")


@pytest.mark.parametrize("method", ["quanto", "hqq", "torchao", None])
def test_other_methods_are_named(method, tmp_path):
    said = {"quant_method": method}
    refused(
        tmp_path, {}, said, f"quant_method: found {method!r}, wanted one of awq, bitsandbytes, "
    )


@pytest.mark.parametrize(
    "said",
    [
        "gptq",
        ["fp8"],
        {"quant_method": ["fp8"]},
        {"quant_method": "fp8", "weight_block_size": "128"},
        {"quant_method": "gptq", "bits": "4", "group_size": 128},
        {"quant_method": "awq", "bits": 4, "group_size": None},
        {"quant_method": "compressed-tensors", "config_groups": {"group_0": 1}},
        {"quant_method": "compressed-tensors", "config_groups": [1], "format": 1},
        {"quant_method": "compressed-tensors", "sparsity_config": "dense"},
    ],
)
def test_a_hostile_configuration_is_refused(said, tmp_path):
    stored, _ = fp8_blocks("F32", "weight_scale_inv")
    refused(tmp_path, stored, said, "config.json: quantization_config: ")


def test_a_target_that_is_no_expression_is_refused(tmp_path):
    stored, _, said = pack_quantised(4, 32, True)
    group = said["config_groups"]["group_0"]
    said["config_groups"] |= {"group_0": {**group, "targets": ["re:("]}, "group_1": group}
    refused(tmp_path, stored, said, "targets: found 're:(', which is no regular expression, or ")


def test_a_target_costs_a_time_in_proportion_to_a_name(tmp_path):
    """An expression that goes back would take twice the time for each letter of a name."""
    stored, _, said = pack_quantised(4, 32, True)
    group = said["config_groups"]["group_0"]
    slow = {**group, "targets": ["re:(([a-z_.0-9])+)+Q"]}
    said["config_groups"] |= {"group_0": slow, "group_1": {**group, "targets": ["absent"]}}
    refused(tmp_path, stored, said, "proj: found in no group of quantization_config, wanted one of")


def test_codes_without_a_method_are_refused(tmp_path):
    stored, _ = fp8_blocks("F32", "weight_scale_inv")
    refused(tmp_path, {k: v for k, v in stored.items() if "inv" not in k}, None, "dtype F8_E4M3")


# ---- compressed-tensors --------------------------------------------------------------------------


def groups(form, weights, **more):
    scheme = {"targets": ["Linear"], "weights": {"symmetric": True, **weights}}
    said = {"quant_method": "compressed-tensors", "format": form, "ignore": ["lm_head"]}
    return {**said, "config_groups": {"group_0": scheme}, **more}


LAYOUTS = {
    "tensor": ({}, lambda rows, columns: (rows, columns), lambda grid: (1,)),
    "channel": ({}, lambda rows, columns: (1, columns), lambda grid: grid),
    "group": ({"group_size": 32}, lambda rows, columns: (1, 32), lambda grid: grid),
    "block": (
        {"block_structure": [16, 40]},
        lambda rows, columns: (16, 40),
        lambda grid: grid,
    ),
}


@pytest.mark.parametrize("strategy", LAYOUTS)
@pytest.mark.parametrize(
    ("form", "kind", "scale"),
    [
        ("float-quantized", "float", "BF16"),
        ("int-quantized", "int", "F32"),
        ("naive-quantized", "float", "F16"),
    ],
)
def test_compressed_numbers_of_8_bits(form, kind, scale, strategy, tmp_path):
    more, block, held = LAYOUTS[strategy]

    def quantise(module, shape, random):
        if kind == "float":
            codes = codes8(random, shape)
            numbers = np.vectorize(e4m3)(codes)
        else:
            codes = numbers = random.integers(-128, 128, shape, np.int8)
        size = block(*shape)
        grid = -(-shape[0] // size[0]), -(-shape[1] // size[1])
        (dtype, stored), scales = scales_of(random, grid, scale)
        parts = {"weight": ("F8_E4M3" if kind == "float" else "I8", codes)}
        parts["weight_scale"] = (dtype, stored.reshape(held(grid)))
        parts["input_scale"] = ("F32", np.ones(1, np.float32))
        return parts, scaled(numbers, scales, *size)

    weights = {"type": kind, "num_bits": 8, "strategy": strategy, **more}
    checked(tmp_path, *quantised(quantise), groups(form, weights))


def test_compressed_integers_with_zero_points(tmp_path):
    def quantise(module, shape, random):
        codes = random.integers(-128, 128, shape, np.int8)
        zeros = random.integers(-9, 9, (shape[0], 1), np.int8)
        stored, scales = scales_of(random, (shape[0], 1), "BF16")
        parts = {
            "weight": ("I8", codes),
            "weight_scale": stored,
            "weight_zero_point": ("I8", zeros),
        }
        return parts, scaled(codes, scales, 1, shape[1], zeros)

    weights = {"type": "int", "num_bits": 8, "strategy": "channel", "symmetric": False}
    checked(tmp_path, *quantised(quantise), groups("int-quantized", weights))


def packed(codes, bits):
    """Rows of unsigned codes as words of 32 bits, low bits first."""
    made = []
    for row in codes:
        value = sum(int(code) << bits * at for at, code in enumerate(row))
        made.append(np.frombuffer(value.to_bytes(-(-len(row) * bits // 32) * 4, "little"), "<i4"))
    return np.array(made)


def pack_quantised(bits, width, symmetric, order=False):
    def quantise(module, shape, random):
        codes = random.integers(0, 1 << bits, shape)
        size = width or shape[1]
        grid = shape[0], shape[1] // size
        stored, scales = scales_of(random, grid, "BF16")
        parts = {"weight_packed": ("I32", packed(codes, bits)), "weight_scale": stored}
        parts["weight_shape"] = ("I64", np.array(shape))
        zeros = np.full(grid, 1 << bits - 1)
        if not symmetric:
            zeros = random.integers(0, 1 << bits, grid)
            parts["weight_zero_point"] = ("I32", packed(zeros.T, bits).T)
        if order:
            place = random.permutation(shape[1])
            parts["weight_g_idx"] = ("I32", (place // size).astype(np.int32))
            inverse = np.argsort(place)
            return parts, scaled(codes[:, inverse], scales, 1, size, zeros)[:, place]
        return parts, scaled(codes, scales, 1, size, zeros)

    weights = {"type": "int", "num_bits": bits, "symmetric": symmetric}
    layout = {"strategy": "group", "group_size": width} if width else {"strategy": "channel"}
    return *quantised(quantise), groups("pack-quantized", {**weights, **layout})


@pytest.mark.parametrize(
    ("bits", "width", "symmetric", "order", "kept"),
    [
        (4, 32, True, False, "Q4_0"),
        (4, 32, False, False, "Q8_0"),
        (8, None, True, False, "Q8_0"),
        (8, 32, False, False, "BF16"),
        (2, 16, False, False, "BF16"),
        (3, 32, False, False, "Q4_0"),
        (5, None, True, False, "Q8_0"),
        (4, 32, True, True, "BF16"),
        (4, 16, False, True, "BF16"),
    ],
)
def test_compressed_integers_in_words(bits, width, symmetric, order, kept, tmp_path):
    """Q4_0 and Q8_0 keep integers of 4 and 8 bits in groups of whole blocks."""
    checked(tmp_path, *pack_quantised(bits, width, symmetric, order), kept=kept)


def nibbles(codes):
    """Two codes in a byte, low bits first."""
    return (codes[:, ::2] | codes[:, 1::2] << 4).astype(np.uint8)


def test_nvfp4_is_code_times_scale_of_the_group_over_that_of_the_tensor(tmp_path):
    def quantise(module, shape, random):
        codes = random.integers(0, 16, shape)
        held = random.integers(1, 127, (shape[0], shape[1] // 16)).astype(np.uint8)
        whole = np.float32(random.uniform(3000, 9000))
        scales = np.vectorize(e4m3)(held).astype(np.float32) / whole
        parts = {
            "weight_packed": ("U8", nibbles(codes)),
            "weight_scale": ("F8_E4M3", held),
            "weight_global_scale": ("F32", np.array([whole])),
            "input_global_scale": ("F32", np.ones(1, np.float32)),
        }
        return parts, scaled(np.array(E2M1)[codes], scales, 1, 16)

    weights = {"type": "float", "num_bits": 4, "strategy": "tensor_group", "group_size": 16}
    checked(tmp_path, *quantised(quantise), groups("nvfp4-pack-quantized", weights))


def test_mxfp8_has_powers_of_two(tmp_path):
    def quantise(module, shape, random):
        codes = codes8(random, shape)
        (_, held), scales = scales_of(random, (shape[0], shape[1] // 32), "F8_E8M0")
        parts = {"weight": ("F8_E4M3", codes), "weight_scale": ("U8", held)}
        return parts, scaled(np.vectorize(e4m3)(codes), scales, 1, 32)

    weights = {"type": "float", "num_bits": 8, "strategy": "group", "group_size": 32}
    checked(tmp_path, *quantised(quantise), groups("mxfp8-quantized", weights))


def test_modules_have_the_scheme_of_the_group_that_names_them(tmp_path):
    """Names go before expressions, and these before the class of all matrices."""
    up, down = "model.layers.0.mlp.up_proj", "model.layers.0.mlp.down_proj"
    four, four_floats, said = pack_quantised(4, 32, True)
    eight, eight_floats, other = pack_quantised(8, None, True)
    fp8, fp8_floats = fp8_whole("weight_scale", (1,))
    stored = {name: one for name, one in four.items() if up not in name and down not in name}
    stored |= {name: one for name, one in eight.items() if up in name}
    stored |= {name: one for name, one in fp8.items() if down in name}
    floats = {**four_floats, f"{up}.weight": eight_floats[f"{up}.weight"]}
    floats[f"{down}.weight"] = fp8_floats[f"{down}.weight"]
    weights = {"type": "float", "num_bits": 8, "strategy": "tensor", "symmetric": True}
    said["format"] = "mixed-precision"
    said["config_groups"]["group_0"]["format"] = "pack-quantized"
    said["config_groups"] |= {
        "group_1": {**other["config_groups"]["group_0"], "targets": ["re:.*mlp.(up|down)_proj"]},
        "group_2": {"targets": [down], "weights": weights, "format": "float-quantized"},
    }
    said["config_groups"]["group_1"]["format"] = "pack-quantized"
    kept = {**dict.fromkeys(MODULES, "Q4_0"), up: "Q8_0", down: "BF16"}
    checked(tmp_path, stored, floats, said, kept=kept)


def test_compressed_tensors_that_do_not_fit_together_are_refused(tmp_path):
    stored, _, said = pack_quantised(4, 32, False)
    name = "model.layers.0.mlp.up_proj.weight"
    scheme = said["config_groups"]["group_0"]

    def without(*ends):
        return {key: one for key, one in stored.items() if key not in [name + end for end in ends]}

    def saying(**weights):
        group = {**scheme, "weights": {**scheme["weights"], **weights}}
        return {**said, "config_groups": {"group_0": group}}

    for end in ("_scale", "_shape", "_zero_point"):
        refused(tmp_path, without(end), said, f"{name}: found no {name}{end}")
    refused(tmp_path, without("_packed"), said, f"{name}_", "without the weight")
    other = {**stored, f"{name}_shape": ("I64", np.array([96, 72]))}
    refused(tmp_path, other, said, f"{name}_packed", "shape [96, 8], wanted [96, 9]")
    refused(tmp_path, stored, saying(group_size=16), "_scale", "shape [64, 2], wanted [64, 4]")
    refused(tmp_path, stored, saying(group_size=48), "64 columns, wanted a multiple")
    refused(tmp_path, stored, saying(num_bits=8), "_packed", "wanted [64, 16]")
    refused(tmp_path, stored, saying(strategy="attn_head"), "strategy", "attn_head")
    refused(tmp_path, stored, saying(type="float"), "type of its group: found 'float'")
    order = {**stored, f"{name}_g_idx": ("I32", np.full(64, 2, np.int32))}
    refused(tmp_path, order, said, f"{name}_g_idx", "groups 2 to 2, wanted 0 to 1")
    refused(tmp_path, stored, {**said, "format": "marlin-24"}, "found 'marlin-24'")
    refused(tmp_path, stored, {**said, "format": "float-quantized"}, f"wanted {MODULES[0]}.weight")
    refused(tmp_path, stored, {**said, "config_groups": {}}, "config_groups")
    sparse = {"format": "sparse-24-bitmask"}
    refused(tmp_path, stored, {**said, "sparsity_config": sparse}, "sparse-24-bitmask")
    turned = {"config_groups": {"R1": {}}}
    refused(tmp_path, stored, {**said, "transform_config": turned}, "transform_config")
    named = {**scheme, "targets": ["re:.*mlp.*"]}
    two = {"group_0": named, "group_1": {**scheme, "targets": ["lm_head"]}}
    refused(tmp_path, stored, {**said, "config_groups": two}, "q_proj", "in no group")


# ---- ModelOpt ------------------------------------------------------------------------------------


def modelopt(rows):
    """Matrices of the attention in NVFP4, others in 8 bits with a scale for all or for each row."""

    def quantise(module, shape, random):
        if "attn" in module:
            codes = random.integers(0, 16, shape)
            held = random.integers(1, 127, (shape[0], shape[1] // 16)).astype(np.uint8)
            whole = np.float32(random.uniform(1e-4, 3e-4))
            scales = np.vectorize(e4m3)(held).astype(np.float32) * whole
            parts = {"weight": ("U8", nibbles(codes)), "weight_scale": ("F8_E4M3", held)}
            parts |= {"weight_scale_2": ("F32", whole.reshape(())), "input_scale": parts["weight"]}
            return parts, scaled(np.array(E2M1)[codes], scales, 1, 16)
        codes = codes8(random, shape)
        (_, held), scales = scales_of(random, (shape[0], 1) if rows else (1, 1), "F32")
        parts = {"weight": ("F8_E4M3", codes)}
        parts["weight_scale"] = ("F32", held.reshape(-1) if rows else held.reshape(()))
        size = (1 if rows else shape[0]), shape[1]
        return parts, scaled(np.vectorize(e4m3)(codes), scales, *size)

    return quantised(quantise)


MIXED = {
    "quant_method": "modelopt",
    "quant_algo": "MIXED_PRECISION",
    "quantized_layers": {
        module: {"quant_algo": "NVFP4" if "attn" in module else "FP8"} for module in MODULES
    },
}


@pytest.mark.parametrize("rows", [False, True])
def test_modelopt_of_4_and_8_bits(rows, tmp_path):
    checked(tmp_path, *modelopt(rows), MIXED)


def test_modelopt_that_does_not_fit_together_is_refused(tmp_path):
    stored, _ = modelopt(False)
    name = "model.layers.0.self_attn.q_proj.weight"

    def without(end):
        return {key: one for key, one in stored.items() if key != name + end}

    refused(tmp_path, without("_scale_2"), MIXED, f"{name}: found no {name}_scale_2")
    refused(tmp_path, without("_scale"), MIXED, f"{name}: found no {name}_scale")
    refused(tmp_path, without(""), MIXED, f"{name}_scale", "without the weight")
    zero = {**stored, f"{name}_scale_2": ("F32", np.float32(0))}
    refused(tmp_path, zero, MIXED, f"{name}_scale_2: found 0.0, wanted a positive number")
    awq = {"quant_method": "modelopt", "quant_algo": "NVFP4_AWQ"}
    refused(tmp_path, stored, awq, "quant_algo: found 'NVFP4_AWQ'")
    mixed = {**MIXED, "quantized_layers": {"a": {"quant_algo": "W4A8_AWQ"}}}
    refused(tmp_path, stored, mixed, "quant_algo: found 'W4A8_AWQ'")


# ---- GPTQ and AWQ --------------------------------------------------------------------------------


def gptq(bits, width, less, *, order=False, index=True, middle=False):
    """less: what is taken from a zero point before it is stored."""

    def quantise(module, shape, random):
        rows, columns = shape
        codes = random.integers(0, 1 << bits, shape)
        size = columns if width == -1 else width
        grid = rows, columns // size
        (_, held), scales = scales_of(random, grid, "F16")
        zeros = random.integers(less, 1 << bits, grid)  # none is stored as the largest code
        if middle:
            zeros[:] = 1 << bits - 1
        place = random.permutation(columns) if order else np.arange(columns)
        parts = {
            "qweight": ("I32", packed(codes.T.T, bits).T),
            "qzeros": ("I32", packed((zeros - less).T, bits)),
            "scales": ("F16", held.T),
        }
        if index:
            parts["g_idx"] = ("I32", (place // size).astype(np.int32))
        inverse = np.argsort(place)
        return parts, scaled(codes[:, inverse], scales, 1, size, zeros)[:, place]

    return quantised(quantise)


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("version", [{}, {"checkpoint_format": "gptq_v2"}])
def test_gptq_stores_zero_points_by_version(bits, version, tmp_path):
    said = {"quant_method": "gptq", "bits": bits, "group_size": 32, "desc_act": False, **version}
    kept = {4: "Q8_0", 8: "BF16"}.get(bits, "Q4_0")
    checked(tmp_path, *gptq(bits, 32, 0 if version else 1), said, kept=kept)


def test_gptq_groups_by_activation_or_without_an_index(tmp_path):
    said = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": True}
    checked(tmp_path, *gptq(4, 32, 1, order=True), said)
    (tmp_path / "plain").mkdir()
    said = {"quant_method": "gptq", "bits": 4, "group_size": -1}
    checked(tmp_path / "plain", *gptq(4, -1, 1, index=False), said, kept="Q8_0")


def test_symmetric_gptq_is_q4_0_and_q8_0(tmp_path):
    for bits, kept in ((4, "Q4_0"), (8, "Q8_0")):
        said = {"quant_method": "gptq", "bits": bits, "group_size": 32, "sym": True}
        (tmp_path / kept).mkdir()
        checked(tmp_path / kept, *gptq(bits, 32, 1, middle=True), said, kept=kept)


def test_scales_beyond_float16_are_not_kept_as_integers(tmp_path):
    stored, floats, said = pack_quantised(4, 32, True)
    for module in MODULES:
        scale = stored[f"{module}.weight_scale"][1]
        stored[f"{module}.weight_scale"] = ("BF16", scale - (20 << 7))  # times 2**-20
        floats[f"{module}.weight"] *= np.float32(2.0**-20)
    checked(tmp_path, stored, floats, said)


def test_codes_beyond_their_bits_are_refused(tmp_path):
    def quantise(module, shape, random):
        codes = random.integers(-9, 8, shape, np.int8)
        stored, scales = scales_of(random, (shape[0], 1), "BF16")
        return {"weight": ("I8", codes), "weight_scale": stored}, scaled(codes, scales, 1, shape[1])

    weights = {"type": "int", "num_bits": 4, "strategy": "channel"}
    said = groups("int-quantized", weights)
    refused(tmp_path, quantised(quantise)[0], said, f"{MODULES[0]}.weight: found codes beyond 4")


def test_gptq_that_does_not_fit_together_is_refused(tmp_path):
    stored, _ = gptq(4, 32, 1)
    said = {"quant_method": "gptq", "bits": 4, "group_size": 32}
    module = "model.layers.0.mlp.up_proj"

    def without(part):
        return {key: one for key, one in stored.items() if key != f"{module}.{part}"}

    def changed(part, dtype, array):
        return {**stored, f"{module}.{part}": (dtype, array)}

    refused(tmp_path, without("scales"), said, f"found no {module}.scales")
    refused(tmp_path, without("qzeros"), said, f"found no {module}.qzeros")
    refused(tmp_path, without("qweight"), said, f"{module}.", "without the weight")
    refused(tmp_path, without("g_idx"), {**said, "desc_act": True}, f"{module}.g_idx")
    other = changed("g_idx", "I32", np.arange(64, dtype=np.int32))
    refused(tmp_path, other, said, "groups 0 to 63, wanted 0 to 1")
    full = changed("qzeros", "I32", np.full((2, 12), -1, np.int32))
    refused(tmp_path, full, said, f"{module}.qzeros", "stored as 15", "wanted gptq_v2")
    refused(tmp_path, stored, {**said, "group_size": 16}, "scales", "wanted [4, 64]")
    refused(tmp_path, stored, {**said, "bits": 5}, "bits: found 5")
    refused(tmp_path, stored, {**said, "checkpoint_format": "marlin"}, "found 'marlin'")
    refused(tmp_path, stored, {**said, "dynamic": {"+:.*": {"bits": 8}}}, "dynamic")
    floats = {f"{module}.weight": ("BF16", bf16(np.ones((96, 64))))}
    refused(tmp_path, {**floats, **stored}, said, f"{module}.weight: found as floats and quantised")


def awq(width):
    def quantise(module, shape, random):
        rows, columns = shape
        codes = random.integers(0, 16, shape)
        grid = rows, columns // width
        (_, held), scales = scales_of(random, grid, "F16")
        zeros = random.integers(0, 16, grid)
        order = [0, 2, 4, 6, 1, 3, 5, 7]  # outputs of a word from its lowest bits up

        def words(numbers):
            return packed(
                numbers.reshape(len(numbers), -1, 8)[:, :, order].reshape(len(numbers), -1), 4
            )

        parts = {
            "qweight": ("I32", words(codes.T)),
            "qzeros": ("I32", words(zeros.T)),
            "scales": ("F16", held.T),
        }
        return parts, scaled(codes, scales, 1, width, zeros)

    return quantised(quantise)


def test_awq_takes_outputs_of_a_word_even_ones_first(tmp_path):
    said = {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True}
    checked(tmp_path, *awq(32), {**said, "version": "gemm"}, kept="Q8_0")


def test_awq_of_other_layouts_is_refused(tmp_path):
    stored, _ = awq(32)
    said = {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True}
    refused(tmp_path, stored, {**said, "version": "gemv"}, "version: found 'gemv'")
    refused(tmp_path, stored, {**said, "bits": 8}, "bits: found 8")
    refused(tmp_path, stored, {**said, "zero_point": False}, "zero_point: found False")
    refused(tmp_path, stored, {**said, "group_size": 16}, "scales", "wanted [4, 64]")


# ---- stacks of experts, and 4-bit floats ---------------------------------------------------------


def mxfp4_of(random, shape):
    """(codes two in a byte, scales, numbers) of rows of MXFP4."""
    codes = random.integers(0, 16, shape)
    powers = random.integers(110, 121, (*shape[:-1], shape[-1] // 32)).astype(np.uint8)
    scales = np.exp2(powers.astype(np.float64) - 127).astype(np.float32)
    values = np.array(E2M1, np.float32)[codes] * np.repeat(scales, 32, axis=-1)
    packed = (codes[..., ::2] | codes[..., 1::2] << 4).astype(np.uint8)
    return packed, powers, values


def test_mxfp4_is_repacked_unless_a_float_type_is_asked_for(tmp_path):
    """Rows of q and k change places in the file, and their blocks with them."""

    def quantise(module, shape, random):
        codes, scales, values = mxfp4_of(random, shape)
        return {"weight_packed": ("U8", codes), "weight_scale": ("U8", scales)}, values

    stored, floats = quantised(quantise)
    weights = {"type": "float", "num_bits": 4, "strategy": "group", "group_size": 32}
    said = groups("mxfp4-pack-quantized", weights)
    place = folder(tmp_path / "mxfp4", {**plain(), **stored}, quantization_config=said)
    twin = {name: ("F32", values) for name, values in floats.items()}
    other = folder(tmp_path / "float", {**plain(), **twin})
    wanted = GgufReader(convert_folder(other, tmp_path / "float.gguf", "F32", name="tiny").path)
    made = GgufReader(convert_folder(place, tmp_path / "auto.gguf").path)
    for name in wanted.tensors:
        matrix = "attn_" in name or "ffn_" in name
        if matrix and not name.endswith("norm.weight"):
            assert made.tensors[name].type_name == "MXFP4", name
            assert np.array_equal(numbers_of(made, name), numbers_of(wanted, name)), name
    same(convert_folder(place, tmp_path / "f32.gguf", "F32", name="tiny").path, wanted.path)
    four = convert_folder(other, tmp_path / "float4.gguf", "Q4_0", name="tiny").path
    same(convert_folder(place, tmp_path / "q4.gguf", "Q4_0", name="tiny").path, four)
    assert made.metadata["general.file_type"] == 38


def test_a_scale_of_mxfp4_that_is_no_number_is_refused(tmp_path):
    """While the file is written, of which nothing is left."""

    def quantise(module, shape, random):
        codes, scales, values = mxfp4_of(random, shape)
        scales[-1, -1] = 255
        return {"weight_packed": ("U8", codes), "weight_scale": ("U8", scales)}, values

    weights = {"type": "float", "num_bits": 4, "strategy": "group", "group_size": 32}
    said = groups("mxfp4-pack-quantized", weights)
    refused(tmp_path, quantised(quantise)[0], said, f"{MODULES[0]}.weight: found a scale of NaN")


def golden_with(tmp_path, name, quantise, **config):
    """The files of a golden's folder with some weights quantised, and of one with the floats that
    they stand for. quantise(name, array) gives {name: (dtype, array)} and the floats, or None.
    """
    golden = golden_of(name)
    stored, floats = {}, {}
    for full, array in folder_of(golden, tmp_path / "first").items():
        found = quantise(full, array) if array.dtype == np.float32 else None
        if found is None:
            stored[full] = floats[full] = ({"f4": "F32", "i8": "I64"}[array.dtype.str[1:]], array)
        else:
            stored |= found[0]
            floats[full] = ("F32", found[1])
    for place, tensors, more in (("q", stored, config), ("f", floats, {})):
        (tmp_path / place).mkdir()
        (tmp_path / place / "config.json").write_text(json.dumps({**golden["config"], **more}))
        save(tmp_path / place / "model.safetensors", tensors)
    return tmp_path / "q", tmp_path / "f"


def same_numbers(quantised, floats, tmp_path, packed):
    """Whether the two files of float32 have the same numbers, those of `packed` as MXFP4."""
    made, wanted = (
        GgufReader(convert_folder(one, tmp_path / f"{one.name}.gguf", "F32", name="tiny").path)
        for one in (quantised, floats)
    )
    assert set(made.tensors) == set(wanted.tensors)
    for name in made.tensors:
        kind = "MXFP4" if packed in name else wanted.tensors[name].type_name
        assert made.tensors[name].type_name == kind, name
        if kind != "I32":
            assert np.array_equal(numbers_of(made, name), numbers_of(wanted, name)), name
    return made


def test_deepseek_v4_as_it_is_published(tmp_path):
    """Matrices of 8 bits in blocks, experts of 4 bits whose numbers are kept."""
    random = np.random.default_rng(3)

    def quantise(name, array):
        if ".experts." in name:
            codes, scales, values = mxfp4_of(random, array.shape)
            parts = {name: ("I8", codes.view(np.int8))}
            return {**parts, name.replace("weight", "scale"): ("F8_E8M0", scales)}, values
        if not re.search(r"attn\.(indexer\.)?w(q_a|q_b|kv|o_a|o_b)\.|shared_experts", name):
            return None
        codes = codes8(random, array.shape)
        grid = -(-array.shape[0] // 128), -(-array.shape[1] // 128)
        stored, scales = scales_of(random, grid, "F8_E8M0")
        parts = {name: ("F8_E4M3", codes), name.replace("weight", "scale"): stored}
        return parts, scaled(np.vectorize(e4m3)(codes), scales, 128, 128)

    said = {"quant_method": "fp8", "weight_block_size": [128, 128], "scale_fmt": "ue8m0"}
    said |= {"activation_scheme": "dynamic", "fmt": "e4m3"}
    config = {"quantization_config": said, "expert_dtype": "fp4"}
    places = golden_with(tmp_path, "deepseek_v4", quantise, **config)
    same_numbers(*places, tmp_path, "_exps.")
    made = GgufReader(convert_folder(places[0], tmp_path / "auto.gguf").path)
    assert made.tensors["blk.0.attn_q_a.weight"].type_name == "BF16"
    assert made.tensors["blk.0.ffn_gate_exps.weight"].type_name == "MXFP4"
    config = json.loads((places[0] / "config.json").read_text())
    (places[0] / "config.json").write_text(json.dumps({**config, "expert_dtype": None}))
    with pytest.raises(ConvertError, match=r"experts.*weight: dtype I8, wanted F32"):
        convert_folder(places[0], tmp_path / "other.gguf")


def test_experts_of_kimi_k3_keep_their_numbers(tmp_path):
    random = np.random.default_rng(4)

    def quantise(name, array):
        if ".experts." not in name:
            return None
        codes, scales, values = mxfp4_of(random, array.shape)
        return {f"{name}_packed": ("U8", codes), f"{name}_scale": ("U8", scales)}, values

    weights = {"type": "float", "num_bits": 4, "strategy": "group", "group_size": 32}
    said = groups("mxfp4-pack-quantized", weights)
    places = golden_with(tmp_path, "kimi_k3", quantise, quantization_config=said)
    made = same_numbers(*places, tmp_path, "_exps.")
    assert made.tensors["blk.1.ffn_down_exps.weight"].type_name == "MXFP4"


def stacked(block, shape):
    """Quantises fused experts as transformers 5 holds them: `block` (rows, columns), None for one
    scale of each expert, "halves" for one of each half. shape: of the scales.
    """
    random = np.random.default_rng(5)

    def quantise(name, array):
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            return None
        codes = codes8(random, array.shape)
        experts, rows, columns = array.shape
        height, width = rows, columns
        if block == "halves":
            height = rows // 2 if "gate_up" in name else rows
        elif block:
            height, width = block
        grid = experts, -(-rows // height), -(-columns // width)
        stored, scales = scales_of(random, grid, "F32")
        numbers = np.vectorize(e4m3)(codes)
        floats = [scaled(*one, height, width) for one in zip(numbers, scales)]
        held = ("F32", scales.reshape(shape(grid)))
        parts = {name: ("F8_E4M3", codes), f"{name}_scale_inv": held}
        return {**parts, f"{name}_activation_scale": ("F32", np.ones(experts, np.float32))}, (
            np.stack(floats)
        )

    return quantise


@pytest.mark.parametrize(
    ("name", "block", "shape"),
    [
        ("mistral4", (16, 24), lambda grid: grid),
        ("mistral4", None, lambda grid: grid),
        ("mistral4", None, lambda grid: grid[:1]),
        ("mistral4", "halves", lambda grid: grid),
        ("qwen3_vl_moe", (16, 24), lambda grid: grid),
    ],
)
def test_fp8_of_fused_experts(name, block, shape, tmp_path):
    size = list(block) if isinstance(block, tuple) else None
    said = {"quant_method": "fp8", "weight_block_size": size}
    places = golden_with(tmp_path, name, stacked(block, shape), quantization_config=said)
    same_numbers(*places, tmp_path, "nothing")


def test_a_block_across_both_halves_of_fused_experts_is_refused(tmp_path):
    quantise = stacked((40, 24), lambda grid: grid)
    said = {"quant_method": "fp8", "weight_block_size": [40, 24]}
    place, _ = golden_with(tmp_path, "mistral4", quantise, quantization_config=said)
    with pytest.raises(ConvertError, match="gate_up_proj: halves of 32 rows in blocks of 40"):
        convert_folder(place, tmp_path / "out.gguf")


def test_queries_keys_and_values_of_mimo_in_the_order_of_devices_are_refused(tmp_path):
    random = np.random.default_rng(6)

    def quantise(name, array):
        if not name.endswith("q_proj.weight"):
            return None
        fused = name.replace("q_proj", "qkv_proj")
        scale = ("F32", np.ones((1, 1), np.float32))
        codes = ("F8_E4M3", codes8(random, (2 * len(array), 64)))
        return {fused: codes, f"{fused}_scale_inv": scale}, array

    said = {"quant_method": "fp8", "weight_block_size": [1024, 1024]}
    place, _ = golden_with(tmp_path, "mimo2", quantise, quantization_config=said)
    with pytest.raises(ConvertError, match=r"qkv_proj.weight: found quantised, its rows in the"):
        convert_folder(place, tmp_path / "out.gguf")


# ---- bitsandbytes --------------------------------------------------------------------------------

NF4 = [-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
       -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
       0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
       0.7229568362236023, 1.0]  # fmt: skip
BNB = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_storage": "uint8"}


def bnb4(kind, nested, size=64):
    """Codes of a table, two in a byte; blocks run through the rows of 96 columns."""

    def quantise(module, shape, random):
        table = np.array(NF4 if kind == "nf4" else E2M1, np.float32) / (1 if kind == "nf4" else 6)
        codes = random.integers(0, 16, shape)
        count = -(-codes.size // size)
        said = {"quant_type": kind, "blocksize": size, "dtype": "bfloat16", "shape": list(shape)}
        pairs = codes.reshape(-1, 2)
        parts = {"weight": ("U8", (pairs[:, :1] << 4 | pairs[:, 1:]).astype(np.uint8))}
        parts["weight.quant_map"] = ("F32", table)
        if nested:
            outer = random.uniform(0.01, 0.02, -(-count // 16)).astype(np.float32)
            inner = np.sort(random.uniform(-1, 1, 256)).astype(np.float32)
            held = random.integers(0, 256, count).astype(np.uint8)
            said |= {"nested_blocksize": 16, "nested_dtype": "float32", "nested_offset": 0.05}
            scales = [
                inner[one] * outer[at // 16] + np.float32(0.05) for at, one in enumerate(held)
            ]
            parts["weight.absmax"] = ("U8", held)
            parts["weight.nested_absmax"] = ("F32", outer)
            parts["weight.nested_quant_map"] = ("F32", inner)
        else:
            scales = random.uniform(0.01, 0.2, count).astype(np.float32)
            parts["weight.absmax"] = ("F32", scales)
        state = np.frombuffer(json.dumps(said).encode(), np.uint8)
        parts[f"weight.quant_state.bitsandbytes__{kind}"] = ("U8", state)
        made = [table[code] * scales[at // size] for at, code in enumerate(codes.reshape(-1))]
        return parts, np.array(made, np.float32).reshape(shape)

    return quantised(quantise)


@pytest.mark.parametrize(("kind", "nested"), [("nf4", True), ("nf4", False), ("fp4", False)])
def test_bitsandbytes_of_4_bits_is_a_table_times_scales(kind, nested, tmp_path):
    checked(tmp_path, *bnb4(kind, nested), BNB)


def test_numbers_are_those_that_bitsandbytes_gives():
    """A row that bitsandbytes 0.50.2 quantised twice, and the bfloat16 numbers it made of it."""
    codes = "9d6d63a85787923c5979518932297b97a7854144ba97917ad6c295906f38156c"
    wanted = (
        "ee3bd03c86bbd03c86bb92bc363c6b3b08bc00006b3b0000ee3bc2bc92bca33c08bcee3b0000ee3b08bc01bd"
        "6b3bee3b92bcc2bcc2bcee3b0000793cee3b0000363c00006b3b08bc52bc01bd52bc52bc793c363cee3b0000"
        "ee3b01bd0000363cd03c86bba33cc2bcee3b08bcee3b39bd86bb393d92bc6b3b01bd08bc86bba33c"
    )
    said = {"quant_type": "nf4", "blocksize": 64, "dtype": "bfloat16", "shape": [1, 64],
            "nested_blocksize": 256, "nested_dtype": "float32",
            "nested_offset": 0.05381011962890625}  # fmt: skip
    inner = np.zeros(256, np.float32)
    inner[34] = -0.5148437023162842
    parts = {
        "": np.frombuffer(bytes.fromhex(codes), np.uint8)[:, None],
        ".absmax": np.array([34], np.uint8),
        ".quant_map": np.array(NF4, np.float32),
        ".nested_absmax": np.array([0.01699066162109375], np.float32),
        ".nested_quant_map": inner,
        ".quant_state.bitsandbytes__nf4": np.frombuffer(json.dumps(said).encode(), np.uint8),
    }
    stored = {
        f"x.weight{end}": StoredTensor("U8" if one.dtype == np.uint8 else "F32", one)
        for end, one in parts.items()
    }
    made = dequantised(stored, {**CONFIG, "quantization_config": BNB}, "here")
    assert list(made) == ["x.weight"]
    assert made["x.weight"].as_type("BF16").tobytes().hex() == wanted


def bnb8():
    def quantise(module, shape, random):
        codes = random.integers(-127, 128, shape).astype(np.int8)
        scales = random.uniform(0.1, 2, shape[0]).astype(np.float32)
        parts = {"weight": ("I8", codes), "SCB": ("F32", scales)}
        parts["weight_format"] = ("U8", np.uint8(0))
        return parts, scaled(codes, scales[:, None] / np.float32(127), 1, shape[1])

    return quantised(quantise)


def test_bitsandbytes_of_8_bits_has_a_scale_for_each_row(tmp_path):
    checked(tmp_path, *bnb8(), BNB)


def test_bitsandbytes_that_does_not_fit_together_is_refused(tmp_path):
    stored, _ = bnb4("nf4", True)
    name = f"{MODULES[0]}.weight"
    state = f"{name}.quant_state.bitsandbytes__nf4"

    def with_state(**more):
        said = {**json.loads(stored[state][1].tobytes()), **more}
        return {**stored, state: ("U8", np.frombuffer(json.dumps(said).encode(), np.uint8))}

    for end in (".absmax", ".quant_map", ".nested_absmax", ".nested_quant_map", state[len(name) :]):
        left = {key: one for key, one in stored.items() if key != name + end}
        refused(tmp_path, left, BNB, f"{name}: found no {name}{end}")
    left = {key: one for key, one in stored.items() if key != name}
    refused(tmp_path, left, BNB, "found without the weight")
    refused(tmp_path, with_state(shape=[64, 32]), BNB, f"{name}: shape [2048, 1], wanted [1024, 1]")
    refused(tmp_path, with_state(shape=[4096]), BNB, "shape: found [4096], wanted a matrix")
    refused(tmp_path, with_state(blocksize=128), BNB, f"{name}.absmax: shape [64], wanted [32]")
    refused(tmp_path, with_state(blocksize=0), BNB, "blocksize: found 0, wanted a positive integer")
    refused(tmp_path, {**stored, state: ("U8", np.zeros(4, np.uint8))}, BNB, "do not fit together")
    other = {**BNB, "bnb_4bit_quant_storage": "bfloat16"}
    refused(tmp_path, stored, other, "bnb_4bit_quant_storage: found 'bfloat16', wanted 'uint8'")
    stored, _ = bnb8()
    turned = {**stored, f"{name}_format": ("U8", np.uint8(1))}
    refused(tmp_path, turned, BNB, f"{name}_format: found 1, wanted 0 (rows)")
    short = {**stored, name.replace("weight", "SCB"): ("F32", np.ones(3, np.float32))}
    refused(tmp_path, short, BNB, "SCB: shape [3], wanted [64]")


# ---- whole models --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["qwen3moe", "deepseek_v3"])
def test_a_quantised_folder_generates_the_tokens_of_its_floats(name, cases, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    held = read_safetensors(cases / "hf" / name / "model.safetensors")
    random = np.random.default_rng(7)
    stored, floats = {}, {}
    for full, tensor in held.items():
        if not full.endswith("proj.weight"):
            stored[full] = floats[full] = (tensor.dtype, tensor.data)
            continue
        codes = codes8(random, tensor.shape)
        grid = -(-tensor.shape[0] // 16), -(-tensor.shape[1] // 40)
        scale, scales = scales_of(random, grid, "F32")
        stored |= {full: ("F8_E4M3", codes), f"{full}_scale_inv": scale}
        wide = np.repeat(np.repeat(scales, 16, 0), 40, 1)[: len(codes), : codes.shape[1]]
        numbers = StoredTensor("F8_E4M3", codes).floats() * wide
        floats[full] = ("BF16", bf16(numbers))
    tokens = []
    for place, tensors, said in (("q", stored, BLOCKS), ("f", floats, None)):
        shutil.copytree(cases / "hf" / name, tmp_path / place)
        config = json.loads((tmp_path / place / "config.json").read_text())
        config |= {"dtype": "bfloat16", "quantization_config": said}
        for one in ("config.json", "model.safetensors"):
            (tmp_path / place / one).unlink()
        (tmp_path / place / "config.json").write_text(json.dumps(config))
        save(tmp_path / place / "model.safetensors", tensors)
        with oxillama.load(tmp_path / place) as engine:
            tokens.append(engine.generate([5, 6, 7], max_tokens=24, temperature=0).tokens)
    assert len(tokens[0]) > 1 and tokens[0] == tokens[1]


def peak(pieces):
    """The most bytes that are held at a time while all pieces are taken."""
    tracemalloc.start()
    for _ in pieces():
        pass
    found = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return found


def test_a_stack_of_experts_is_never_in_memory_whole():
    """16 experts of 4 MB of float32 each, 64 MB in all, one tensor or many."""
    codes = np.zeros((16, 512, 2048), np.uint8)
    scales = np.ones((16, 4, 16), np.float32)
    said = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}

    def read(name, codes, scales):
        held = {name: StoredTensor("F8_E4M3", codes)}
        held[f"{name}_scale_inv"] = StoredTensor("F32", scales)
        return dequantised(held, said, "config.json")[name]

    hyper = Hyper({}, "config.json")
    targets = ("blk.0.ffn_gate_exps.weight", "blk.0.ffn_up_exps.weight")
    one = read("experts.gate_up_proj", codes, scales)
    for planned in single("x", one, Rule(targets, halves), targets, hyper, "BF16"):
        assert planned.shape == (16, 256, 2048)
        assert peak(planned.pieces) < 32 << 20
    each = {at: read("x.weight", codes[at], scales[at]) for at in range(16)}
    stacked = stack(SimpleNamespace(path="x"), targets[0], each, "BF16")
    assert stacked.shape == (16, 512, 2048)
    assert peak(stacked.pieces) < 32 << 20
    tall = {0: read("x.weight", codes.reshape(8192, 2048), scales.reshape(64, 16))}
    joined = join(SimpleNamespace(path="x"), "per_layer.weight", tall, "BF16")
    assert joined.shape == (8192, 2048)
    assert peak(joined.pieces) < 32 << 20
