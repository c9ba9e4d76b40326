"""PEFT folders: factors under the names of a Hugging Face model give the logits of the converted
model whose weights have them added.
"""

import json
import shutil

import numpy as np
import pytest

import oxillama
from oxillama import ConfigError, LoraError
from oxillama.convert import convert_folder
from oxillama.convert.folder import ModelFolder
from oxillama.lora.peft import _rules_of
from tests.convert.folders import save
from tests.lora.made import EMBEDDING, write_lora

IDS = [1, 7, 3, 9, 4, 2, 8, 8, 5]
CONFIG = {
    "peft_type": "LORA",
    "r": 4,
    "lora_alpha": 6,
    "bias": "none",
    "use_rslora": False,
    "target_modules": ".*",
}


def write_peft(folder, factors, **config):
    folder.mkdir(exist_ok=True)
    save(
        folder / "adapter_model.safetensors",
        {f"base_model.model.{name}": values for name, values in factors.items()},
    )
    (folder / "adapter_config.json").write_text(json.dumps({**CONFIG, **config}))
    return folder


def is_embedding(name):
    return name.endswith(
        ("embed_tokens.weight", "wte.weight", "embed_in.weight", "word_embeddings.weight")
    )


def made_of(source, folder, scale=1.5, rank=4):
    """(factors for PEFT, the folder of the model with their products added: a head that was tied to
    the embedding stays as it was).
    """
    model, rng = ModelFolder(source), np.random.default_rng(2)
    factors, changed = {}, {}
    conv1d = model.architecture == "GPT2LMHeadModel"
    tied = not any(name in model.tensors for name in ("lm_head.weight", "embed_out.weight"))
    for name, stored in model.tensors.items():
        values = stored.floats().astype(np.float64)
        if values.ndim == 2 and "norm" not in name and not name.endswith(("wpe.weight", ".bias")):
            module = name.removesuffix(".weight")
            rows, columns = values.T.shape if conv1d and "wte" not in name else values.shape
            a = (rng.standard_normal((rank, columns)) * 0.1).astype(np.float32)
            b = (rng.standard_normal((rows, rank)) * 0.1).astype(np.float32)
            if is_embedding(name):
                b, a = a.T, b.T  # (hidden, rank) and (rank, vocabulary)
                factors |= {f"{module}.lora_embedding_A": a, f"{module}.lora_embedding_B": b}
                if tied:
                    changed["lm_head.weight"] = values.astype(np.float32)
                values = values + scale * (a.T.astype(np.float64) @ b.T)
            else:
                factors |= {f"{module}.lora_A.weight": a, f"{module}.lora_B.weight": b}
                product = scale * (b.astype(np.float64) @ a)
                values = values + (product.T if conv1d else product)
        changed[name] = values.astype(np.float32)
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("*.safetensors*"))
    save(folder / "model.safetensors", changed)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": False}))
    return factors


@pytest.mark.parametrize(
    "name",
    ["llama", "mistral", "mixtral", "qwen2", "qwen3", "gemma", "phi3", "gpt2", "gptneox"]
    + ["bloom", "falcon7b"],
)
def test_factors_of_every_module_equal_the_changed_model(name, cases, tmp_path):
    factors = made_of(cases / "hf" / name, tmp_path / "changed")
    base = convert_folder(cases / "hf" / name, tmp_path / "base.gguf", "F32").path
    changed = convert_folder(tmp_path / "changed", tmp_path / "changed.gguf", "F32").path
    with oxillama.load(changed, num_threads=1, kv_type="f32") as engine:
        want = engine.logits(IDS)
    write_peft(tmp_path / "peft", factors)
    with oxillama.load(base, num_threads=1, kv_type="f32") as engine:
        before = engine.logits(IDS)
        got = engine.logits(IDS, lora=tmp_path / "peft")
        assert np.abs(got - want).max() <= 1e-4 * np.abs(want).max()
        assert np.abs(got - before).max() > 0.05 * np.abs(want).max()
        # rank-stabilised: alpha / sqrt(rank)
        stable = write_peft(tmp_path / "stable", factors, use_rslora=True, lora_alpha=3)
        again = engine.logits(IDS, lora=stable)
        assert again.tobytes() == got.tobytes()


def test_what_a_folder_asks_for_beyond_lora_is_refused_by_name(cases, tmp_path, monkeypatch):
    factors = made_of(cases / "hf" / "llama", tmp_path / "changed")
    q = "model.layers.0.self_attn.q_proj"
    a, b = factors[f"{q}.lora_A.weight"], factors[f"{q}.lora_B.weight"]
    pair = {f"{q}.lora_A.weight": a, f"{q}.lora_B.weight": b}
    nan = {**pair, f"{q}.lora_A.weight": a * np.float32(np.nan)}
    with oxillama.load(cases / "arch" / "llama" / "f32.gguf", num_threads=1) as engine:
        before = engine.logits(IDS)
        for config, tensors, told in (
            ({"peft_type": "IA3"}, pair, "peft_type: found 'IA3'"),
            ({"use_dora": True}, pair, "use_dora: found True"),
            ({"bias": "all"}, pair, "bias: found 'all'"),
            ({"modules_to_save": ["lm_head"]}, pair, "modules_to_save"),
            ({"r": 8}, pair, "factors of rank 4"),
            ({"lora_alpha": None}, pair, "lora_alpha: found None"),
            ({"some_new_option": 3}, pair, "some_new_option: found 3"),
            ({"init_lora_weights": "pissa_niter_4"}, pair, "init_lora_weights: found 'pissa_ni"),
            (
                {"rank_pattern": {"(": 4}},
                pair,
                "rank_pattern: found what is no regular expression, ",
            ),
            # the time of one that goes back would double with each letter
            ({"rank_pattern": {"(([a-z_.0-9])+)+Q": 9}, "r": 8}, pair, "factors of rank 4, adapt"),
            ({"alpha_pattern": [4]}, pair, r"alpha_pattern: found \[4\], wanted an object"),
            ({"lora_alpha": 1e39}, pair, "q_proj: lora_alpha: found 1e\\+39, wanted a finite"),
            ({"lora_alpha": 10**400}, pair, "lora_alpha: found 1000"),
            ({"auto_mapping": {"base_model_class": []}, "r": 8}, pair, "factors of rank 4"),
            ({}, {f"{q}.lora_A.weight": a}, "has only lora_A"),
            ({}, {**pair, f"{q}.weight": b}, "is not a factor of a module"),
            ({}, {"model.other.lora_A.weight": a, "model.other.lora_B.weight": b}, "model.other"),
            ({}, nan, "not finite"),
            ({}, {**pair, f"{q}.lora_B.weight": b[:-16]}, "attn_q.weight: factors"),
        ):
            folder = write_peft(tmp_path / "peft", tensors, **config)
            with pytest.raises(LoraError, match=told):
                engine.apply_lora(folder)
            assert not engine.loras.loaded
        assert engine.logits(IDS).tobytes() == before.tobytes()
        # a rank and alpha of its own
        folder = write_peft(
            tmp_path / "own", pair, r=9, rank_pattern={"q_proj": 4}, alpha_pattern={"q_proj": 6}
        )
        plain = write_peft(tmp_path / "plain", pair)
        want = engine.logits(IDS, lora=plain)
        assert engine.logits(IDS, lora=folder).tobytes() == want.tobytes()
        # what a config does not say, or says of a rank of 1
        config = json.loads((plain / "adapter_config.json").read_text())
        del config["use_rslora"]
        (plain / "adapter_config.json").write_text(json.dumps(config))
        (plain / "adapter_model.bin").touch()  # an older save beside it
        assert engine.logits(IDS, lora=plain).tobytes() == want.tobytes()
        thin = {name: (v[:1] if "lora_A" in name else v[:, :1]) for name, v in pair.items()}
        padded = {name: v * (np.arange(4) < 1)[:, None] for name, v in pair.items() if "A" in name}
        padded[f"{q}.lora_B.weight"] = b
        thin = write_peft(tmp_path / "thin", thin, r=1, lora_alpha=1.5)
        padded = write_peft(tmp_path / "padded", padded)
        assert np.allclose(engine.logits(IDS, lora=thin), engine.logits(IDS, lora=padded))
        # an unchanged folder is not read again
        assert engine.load_lora(plain) is engine.load_lora(plain)
        with monkeypatch.context() as patch:
            patch.setattr("oxillama.lora.stack.read_lora", None)
            assert engine.logits(IDS, lora=plain).tobytes() == want.tobytes()
        stem = tmp_path / "style-1.5"
        for version in ("style-1.5", "style-1.6"):
            assert engine.load_lora(write_peft(tmp_path / version, pair)).name == version
        write_peft(stem, {f"{q}.lora_A.weight": 2 * a, f"{q}.lora_B.weight": b})
        with pytest.raises(ConfigError, match="style-1.5 has changed since it was loaded as 'styl"):
            engine.load_lora(stem)
        for name in ("adapter_config.json", "adapter_model.safetensors"):
            with pytest.raises(LoraError, match=f"{name}: is a file of a PEFT folder, wanted the "):
                engine.load_lora(stem / name)
        (stem / "adapter_model.safetensors").rename(stem / "adapter_model.bin")
        with pytest.raises(LoraError, match="bin: pickled weights are not read, wanted adapter_mo"):
            engine.load_lora(stem, name="pickled")


# what peft 0.21 makes of a folder with factors of the modules of `LEFT_OUT` but for these options:
# it gives each of those modules its factors, or leaves one out and says nothing
QUERIES = [f"model.layers.{layer}.self_attn.q_proj" for layer in (0, 1)]
MEANT = (
    {"target_modules": ["q_proj", "no_proj"]},
    {"target_modules": ["self_attn.q_proj"]},
    {"target_modules": None},
    {"target_modules": QUERIES},
    {"target_modules": "all-linear"},
    {"target_modules": r"(?:.*visual.*)|(?:\bmodel\.layers\.[\d]{1,}\.self_attn\.(?:q|k)_proj)"},
    {"target_modules": r".*(?<!visual)\.q_proj"},
    {"target_modules": ["q_proj"], "exclude_modules": ["k_proj", "proj"]},
    {"target_modules": ["q_proj"], "exclude_modules": "q_proj"},
    {"target_modules": ["q_proj"], "exclude_modules": []},
    {"target_modules": ["q_proj"], "layers_to_transform": [0, 1]},
    {"target_modules": ["q_proj"], "layers_to_transform": []},
    {"target_modules": ["q_proj"], "layers_to_transform": [0, 1], "layers_pattern": "layers"},
    {
        "target_modules": ["q_proj"],
        "layers_to_transform": [0, 1],
        "layers_pattern": ["h", "layers"],
    },
    # a whole name is meant whatever the layers
    {"target_modules": QUERIES, "layers_to_transform": [0]},
)
LEFT_OUT = (
    ({"target_modules": ["v_proj"]}, "layers.0.self_attn.q_proj: has factors, .* target_modules"),
    ({"target_modules": ["proj"]}, "target_modules"),
    ({"target_modules": "q_proj"}, "target_modules 'q_proj'"),
    ({"target_modules": r".*layers\.0\..*"}, "layers.1.self_attn.q_proj: .* target_modules"),
    ({"target_modules": []}, r"target_modules \[\]"),
    ({"target_modules": 1}, "target_modules: found 1, wanted a list of names or a pattern"),
    ({"target_modules": [1]}, r"target_modules: found \[1\], wanted a list"),
    ({"target_modules": r"(q)_proj\1"}, "target_modules: found what is no regular expression, or"),
    ({"exclude_modules": ["q_proj"]}, "layers.0.self_attn.q_proj: .* exclude_modules"),
    ({"exclude_modules": r".*\.1\..*"}, "layers.1.self_attn.q_proj: .* exclude_modules"),
    ({"layers_to_transform": [0]}, r"layers.1.self_attn.q_proj: .* layers_to_transform \[0\]"),
    ({"layers_to_transform": 1}, "layers.0.self_attn.q_proj: .* layers_to_transform 1"),
    ({"layers_to_transform": [True]}, "layers_to_transform: found .True., wanted numbers"),
    ({"layers_to_transform": [0, 1], "layers_pattern": "h"}, "q_proj: .* layers_to_transform"),
    ({"layers_to_transform": [0, 1], "layers_pattern": "(h)+"}, "layers_pattern: found '.h.+'"),
    ({"layers_pattern": "layers"}, "layers_pattern: found 'layers' without layers_to_transform"),
    (
        {"layers_to_transform": [0, 1], "target_modules": ".*"},
        "layers_to_transform: found .0, 1. beside target_modules '.*', wanted a list",
    ),
)


def test_factors_of_modules_that_the_config_leaves_out_are_refused(cases, tmp_path):
    made = made_of(cases / "hf" / "llama", tmp_path / "changed")
    factors = {name: values for name, values in made.items() if "q_proj" in name}
    assert len(factors) == 2 * len(QUERIES)
    with oxillama.load(cases / "arch" / "llama" / "f32.gguf", num_threads=1) as engine:
        want = engine.logits(IDS, lora=write_peft(tmp_path / "plain", factors))
        for at, config in enumerate(MEANT):
            folder = write_peft(tmp_path / f"meant{at}", factors, **config)
            assert engine.logits(IDS, lora=folder).tobytes() == want.tobytes(), config
        for config, told in LEFT_OUT:
            config = {"target_modules": ["q_proj"], **config}
            with pytest.raises(LoraError, match=told):
                engine.load_lora(write_peft(tmp_path / "peft", factors, **config))
        # the head and embeddings are not among all linear layers
        for module in ("lm_head", "model.embed_tokens"):
            own = {name: values for name, values in made.items() if name.startswith(module)}
            assert len(own) == 2
            write_peft(tmp_path / "peft", own, target_modules="all-linear")
            with pytest.raises(LoraError, match=f"{module}: has factors, .* 'all-linear'"):
                engine.load_lora(tmp_path / "peft")
            write_peft(tmp_path / "peft", own, target_modules=[module])
            engine.load_lora(tmp_path / "peft", name=module)


def test_experts_that_lack_one_or_differ_in_rank_are_refused(cases, tmp_path):
    factors = made_of(cases / "hf" / "mixtral", tmp_path / "changed")
    base = convert_folder(cases / "hf" / "mixtral", tmp_path / "base.gguf", "F32").path
    gate = {name: v for name, v in factors.items() if "layers.0." in name and ".w1." in name}
    assert len(gate) == 2 * len({name.partition(".w1.")[0] for name in gate}) > 4
    gaps = {name: v for name, v in gate.items() if "experts.1." not in name}
    ranks = {
        name: (v if "experts.1." not in name else v[:2] if "lora_A" in name else v[:, :2])
        for name, v in gate.items()
    }
    own = {"rank_pattern": {"experts.1.w1": 2}, "alpha_pattern": {"experts.1.w1": 3}}
    with oxillama.load(base, num_threads=1) as engine:
        for tensors, config in ((gaps, {}), (ranks, own)):
            folder = write_peft(tmp_path / "peft", tensors, **config)
            with pytest.raises(LoraError, match="factors of experts .*, wanted all of one rank"):
                engine.apply_lora(folder)
        engine.apply_lora(write_peft(tmp_path / "all", gate))


def test_adapters_of_an_embedding_leave_a_tied_head_alone(cases, tmp_path):
    every = made_of(cases / "hf" / "gemma", tmp_path / "changed")
    factors = {name: values for name, values in every.items() if "embed_tokens" in name}
    assert len(factors) == 2
    peft = write_peft(tmp_path / "peft", factors)
    base = convert_folder(cases / "hf" / "gemma", tmp_path / "base.gguf", "F32").path
    with pytest.raises(LoraError, match="token_embd.weight: changes what tokens are read as alone"):
        oxillama.merge_lora(base, peft, tmp_path / "merged.gguf")
    oxillama.merge_lora(base, [(peft, 0.0)], tmp_path / "merged.gguf")
    with oxillama.load(base, num_threads=1, kv_type="f32") as engine:
        alone = engine.load_lora(peft)
        # a GGUF adapter of the same factors changes both, and is another one to a snapshot
        a, b = (factors[f"model.embed_tokens.lora_embedding_{half}"] for half in "AB")
        made = write_lora(tmp_path / "g.gguf", "gemma", {EMBEDDING: (a.T, b)}, alpha=6.0)
        both = engine.load_lora(made)
        assert both.fingerprint != alone.fingerprint
        got = [engine.logits(IDS, lora=one) for one in ([], alone, both)]
        assert not np.array_equal(got[1], got[2]) and not np.array_equal(got[0], got[1])


def test_an_adapter_of_another_embedding_is_refused(cases, tmp_path):
    base = convert_folder(cases / "hf" / "gpt2", tmp_path / "base.gguf", "F32").path
    positions = ModelFolder(cases / "hf" / "gpt2").tensors["transformer.wpe.weight"].floats()
    rows, columns = positions.shape
    factors = {
        "transformer.wpe.lora_embedding_A": np.ones((2, rows), np.float32),
        "transformer.wpe.lora_embedding_B": np.ones((columns, 2), np.float32),
    }
    peft = write_peft(tmp_path / "peft", factors, r=2)
    told = "transformer.wpe: is an embedding, wanted that of tokens"
    with oxillama.load(base, num_threads=1) as engine, pytest.raises(LoraError, match=told):
        engine.load_lora(peft)


@pytest.mark.parametrize("kind", ["f32", "f16", "q8_0"])
def test_the_bases_own_weights_beside_factors_are_the_files(kind, cases, tmp_path):
    """PEFT saves them with an adapter of the embedding or the head (save_embedding_layers)."""
    source = cases / "hf" / "llama"
    every = made_of(source, tmp_path / "changed")
    modules = {"model.embed_tokens": 2, "lm_head": 2}
    own = {name: v for name, v in every.items() if name.startswith(tuple(modules))}
    assert len(own) == 4
    model = ModelFolder(source)
    bases = {f"{m}.base_layer.weight": model.tensors[f"{m}.weight"].floats() for m in modules}
    with oxillama.load(cases / "arch" / "llama" / f"{kind}.gguf", num_threads=1) as engine:
        want = engine.logits(IDS, lora=write_peft(tmp_path / "alone", own))
        got = engine.logits(IDS, lora=write_peft(tmp_path / "with", own | bases))
        assert got.tobytes() == want.tobytes()
        for name, values in bases.items():
            other = values[::-1].copy() if kind == "q8_0" else np.nextafter(values, 9, dtype="f4")
            if kind == "f16":
                other = values * np.float32(1.01)
            for wrong in (other, values[:-1]):
                peft = write_peft(tmp_path / "other", own | bases | {name: wrong})
                with pytest.raises(LoraError, match=f"{name}: found F32 .* that is not .* of the"):
                    engine.load_lora(peft)
        lone = write_peft(tmp_path / "lone", {**own, "model.norm.base_layer.weight": values[0]})
        with pytest.raises(LoraError, match="norm.*: is the weight of a module without factors"):
            engine.load_lora(lone)


def test_two_modules_of_one_tensor_are_refused(cases, tmp_path):
    factors = made_of(cases / "hf" / "llama", tmp_path / "changed")
    q = {name: v for name, v in factors.items() if "layers.0.self_attn.q_proj" in name}
    twice = q | {name.removeprefix("model."): v for name, v in q.items()}
    assert len(twice) == 4
    with oxillama.load(cases / "arch" / "llama" / "f32.gguf", num_threads=1) as engine:
        engine.load_lora(write_peft(tmp_path / "once", q))
        with pytest.raises(LoraError, match="q_proj and .*q_proj are both blk.0.attn_q.weight"):
            engine.load_lora(write_peft(tmp_path / "twice", twice))


def test_a_module_that_two_families_read_otherwise_needs_the_name_of_one():
    def rule(module, **config):
        return _rules_of({module: None}, "granitehybrid", config, "folder")[module][0]

    query, output = (f"model.layers.0.self_attn.{name}_proj" for name in "qo")
    told = "folder: several families of granitehybrid files name these tensors, wanted base_model_"
    with pytest.raises(LoraError, match=told):
        rule(query)
    named = [
        rule(query, auto_mapping={"base_model_class": name})
        for name in ("GraniteMoeHybridForCausalLM", "BambaForCausalLM")
    ]
    assert named[0].targets == named[1].targets == ("blk.{b}.attn_q.{w}",)
    assert named[0].change is not named[1].change
    assert rule(output).targets == ("blk.{b}.attn_output.{w}",)
    with pytest.raises(LoraError, match="model.other: no tensor of a granitehybrid file is made"):
        rule("model.other")
