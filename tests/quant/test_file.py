"""Converting a file changes the formats that were asked for and nothing else."""

import errno
import os
import re

import numpy as np
import pytest

from oxillama.cli import main
from oxillama.errors import ConfigError, GgufError, ModelError, QuantError
from oxillama.gguf import GgufReader, GgufWriter
from oxillama.quant import dequantize, quantize, quantize_file, read_imatrix, write_imatrix

RNG = np.random.default_rng(21)
TENSORS = {
    "token_embd.weight": RNG.standard_normal((40, 256)),
    "blk.0.attn_norm.weight": RNG.standard_normal(256),
    "blk.0.attn_v.weight": RNG.standard_normal((64, 256)),
    "blk.0.ffn_up_exps.weight": RNG.standard_normal((3, 8, 256)),
    "blk.0.ffn_gate_inp.weight": RNG.standard_normal((3, 256)),
    "blk.1.ffn_down.weight": RNG.standard_normal((256, 96)),
    "output.weight": RNG.standard_normal((40, 256)),
}


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "model.gguf"
    with GgufWriter(path, "llama", alignment=64) as writer:
        writer.add("general.file_type", 0, "uint32")
        writer.add("llama.attention.head_count", 8, "uint32")
        writer.add("llama.attention.head_count_kv", 2, "uint32")
        writer.add("llama.rope.freq_base", 10000.0, "float32")
        writer.add("tokenizer.ggml.tokens", ["a", "b", "ä"], "array[string]")
        writer.add("tokenizer.ggml.scores", [0.5, 1, 2], "array[float32]")
        writer.add("split.count", 1, "uint16")
        for name, values in TENSORS.items():
            writer.add_tensor(name, values.astype(np.float32))
    return path


def stored(path):
    with GgufReader(path) as reader:
        return {
            name: (info.type_name, info.shape, bytes(reader.data(name)))
            for name, info in reader.tensors.items()
        }


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_kept_must_be_finite_too(value, tmp_path):
    """Vectors, which no recipe changes, and everything in a copy."""
    for name, at, recipe in (
        ("blk.0.attn_norm.weight", (3,), "Q4_K_M"),
        ("output.weight", (5, 3), "COPY"),
        ("output.weight", (5, 3), "F32"),
    ):
        with GgufWriter(tmp_path / "bad.gguf", "llama") as writer:
            writer.add("llama.attention.head_count", 8, "uint32")
            writer.add("llama.attention.head_count_kv", 2, "uint32")
            for each, values in TENSORS.items():
                held = values.astype(np.float32)
                if each == name:
                    held[at] = value
                writer.add_tensor(each, held)
        row = at[0] if len(at) > 1 else 0
        told = f"{name}: row {row}, column 3 is {value:g}, wanted a finite number"
        with pytest.raises(QuantError, match=re.escape(told)):
            quantize_file(tmp_path / "bad.gguf", tmp_path / "new.gguf", recipe)
        assert not (tmp_path / "new.gguf").exists()


def test_an_importance_matrix_in_place_of_a_model_is_refused(tmp_path):
    write_imatrix(tmp_path / "a.gguf", {"w": np.ones(4, np.float32)}, {"w": 1})
    with pytest.raises(QuantError, match="general.type: found 'imatrix', wanted the file of a mod"):
        quantize_file(tmp_path / "a.gguf", tmp_path / "new.gguf", "Q8_0")


def test_each_tensor_is_what_quantize_makes_of_its_rows(model, tmp_path):
    done = quantize_file(model, tmp_path / "new.gguf", "Q4_K_M")
    found = stored(done.path)
    assert list(found) == list(TENSORS)
    wanted = {
        "token_embd.weight": "Q4_K",
        "blk.0.attn_norm.weight": "F32",
        "blk.0.attn_v.weight": "Q6_K",
        "blk.0.ffn_up_exps.weight": "Q4_K",
        "blk.0.ffn_gate_inp.weight": "F32",
        "blk.1.ffn_down.weight": "Q5_0",
        "output.weight": "Q6_K",
    }
    assert {name: kind for name, (kind, _, _) in found.items()} == wanted
    for plan in done.tensors:
        kind, shape, data = found[plan.name]
        assert (plan.target, plan.shape, plan.bytes_after) == (kind, shape, len(data))
        assert data == quantize(TENSORS[plan.name].astype(np.float32), kind).tobytes(), plan.name
    assert {plan.name: plan.reason for plan in done.tensors if plan.reason != "recipe"} == {
        "blk.0.attn_norm.weight": "kept",
        "blk.0.ffn_gate_inp.weight": "kept",
        "blk.1.ffn_down.weight": "fallback",
    }


def test_keys_are_copied_with_their_kinds_and_the_new_ones_set(model, tmp_path):
    quantize_file(model, tmp_path / "new.gguf", "Q5_K_S")
    with GgufReader(model) as before, GgufReader(tmp_path / "new.gguf") as after:
        assert after.alignment == 64
        assert after.metadata["general.file_type"] == 16
        assert after.metadata["general.quantization_version"] == 2
        changed = {"general.file_type", "general.quantization_version", "split.count"}
        assert set(before.metadata) - changed == set(after.metadata) - changed
        assert "split.count" not in after.metadata
        for key in set(before.metadata) - changed:
            assert after.kv_types[key] == before.kv_types[key]
            assert np.array_equal(after.metadata[key], before.metadata[key]), key


def test_a_dry_run_writes_nothing_and_tells_the_sizes(model, tmp_path):
    plan = quantize_file(model, None, "IQ4_XS", dry_run=True)
    assert plan.path is None
    assert [path.name for path in tmp_path.iterdir()] == ["model.gguf"]
    done = quantize_file(model, tmp_path / "new.gguf", "IQ4_XS")
    assert (plan.tensors, plan.bytes_before, plan.bytes_after) == (
        done.tensors,
        done.bytes_before,
        done.bytes_after,
    )
    assert done.bytes_after == sum(len(data) for _, _, data in stored(done.path).values())
    lines = str(plan).splitlines()
    assert len(lines) == len(TENSORS) + len(plan.notes) + 1
    assert lines[2].split() == [
        "blk.0.attn_v.weight",
        "64x256",
        "F32",
        "->",
        "Q5_K",
        "11,264",
        "recipe",
    ]
    assert lines[-1] == "IQ4_XS: 0.26 MiB -> 0.04 MiB, 5.40 bits per number"
    assert done.bits == 8 * done.bytes_after / sum(values.size for values in TENSORS.values())


def test_overrides_decide_and_the_first_match_wins(model, tmp_path):
    rules = {r"blk\.0\..*exps": "Q2_K", r"blk\.": "Q8_0", "token_embd": "F32"}
    done = quantize_file(model, tmp_path / "new.gguf", "Q4_0", overrides=rules)
    found = {plan.name: (plan.target, plan.reason) for plan in done.tensors}
    assert found["blk.0.ffn_up_exps.weight"] == ("Q2_K", "override")
    assert (
        found["blk.0.attn_v.weight"] == found["blk.0.ffn_gate_inp.weight"] == ("Q8_0", "override")
    )
    assert found["token_embd.weight"] == ("F32", "override")
    assert found["blk.0.attn_norm.weight"] == ("F32", "kept")
    assert found["output.weight"] == ("Q6_K", "recipe")


@pytest.mark.parametrize(
    "rules, why",
    [
        ({"nothing": "Q8_0"}, "override 'nothing': matches no tensor's name"),
        (
            {"attn_norm": "Q8_0"},
            "override 'attn_norm': matches no tensor that it can change: blk.0.attn_norm.weight "
            "never changes",
        ),
        (
            {"blk": "Q8_0", "attn": "Q6_K"},
            "override 'attn': matches no tensor that it can change: blk.0.attn_v.weight is decided "
            "by 'blk' before it",
        ),
        ({"(": "Q8_0"}, "override '(': is not a regular expression"),
        ({"": "Q8_0"}, "override '' to Q8_0: an empty pattern"),
        ({"output": "Q9"}, "override 'output': unknown format 'Q9'"),
        (
            {"ffn_down": "Q4_K"},
            "blk.1.ffn_down.weight: rows of 96 columns, override 'ffn_down' to Q4_K needs a "
            "multiple of 256",
        ),
    ],
)
def test_an_override_that_cannot_be_kept_is_refused(model, tmp_path, rules, why):
    with pytest.raises(QuantError, match=re.escape(why)):
        quantize_file(model, tmp_path / "new.gguf", "Q4_0", overrides=rules)
    assert not (tmp_path / "new.gguf").exists()


def test_pure_uses_the_base_format_everywhere(model):
    plan = quantize_file(model, None, "Q6_K", pure=True, dry_run=True)
    assert {one.target for one in plan.tensors if one.reason == "recipe"} == {"Q6_K"}


def test_importances_reach_the_rows_of_their_matrix(model, tmp_path):
    one, each = (
        RNG.uniform(0.1, 4, 256).astype(np.float32),
        RNG.uniform(0.1, 4, (3, 256)).astype(np.float32),
    )
    path = write_imatrix(
        tmp_path / "i.gguf",
        {"blk.0.attn_v.weight": one, "blk.0.ffn_up_exps.weight": each},
        # fmt: skip
        {"blk.0.attn_v.weight": 1, "blk.0.ffn_up_exps.weight": [1, 1, 1]},
    )
    done = quantize_file(model, tmp_path / "new.gguf", "Q4_K_S", imatrix=path)
    found = stored(done.path)
    values = TENSORS["blk.0.attn_v.weight"].astype(np.float32)
    assert found["blk.0.attn_v.weight"][0] == "Q5_K"
    assert found["blk.0.attn_v.weight"][2] == quantize(values, "Q5_K", one).tobytes()
    experts = TENSORS["blk.0.ffn_up_exps.weight"].astype(np.float32)
    wanted = b"".join(
        quantize(rows, "Q4_K", weights).tobytes() for rows, weights in zip(experts, each)
    )
    assert found["blk.0.ffn_up_exps.weight"][2] == wanted
    assert [plan.name for plan in done.tensors if plan.importance] == [
        "blk.0.attn_v.weight",
        "blk.0.ffn_up_exps.weight",
    ]
    with GgufReader(done.path) as reader:
        assert reader.metadata["quantize.imatrix.file"] == "i.gguf"
        assert reader.metadata["quantize.imatrix.entries_count"] == 2
    # as older files have it
    flat = {"blk.0.attn_v.weight": one, "blk.0.ffn_up_exps.weight": each.reshape(-1)}
    # several files are as one over all their tokens, in Python and on the command line
    other = write_imatrix(
        tmp_path / "j.gguf", {"blk.0.attn_v.weight": np.ones(256)}, {"blk.0.attn_v.weight": 3}
    )
    both = quantize_file(model, tmp_path / "both.gguf", "Q4_K_S", imatrix=[path, other])
    means = read_imatrix(path, other)
    mean = quantize_file(model, tmp_path / "mean.gguf", "Q4_K_S", imatrix=means)
    given = ("--imatrix", str(path), "--imatrix", str(other))
    assert main(["quantize", str(model), str(tmp_path / "shell.gguf"), "Q4_K_S", *given]) == 0
    with GgufReader(both.path) as a, GgufReader(mean.path) as b:
        assert a.metadata["quantize.imatrix.file"] == "i.gguf, j.gguf"
        assert all(np.array_equal(a.data(name), b.data(name)) for name in a.tensors)
    assert (tmp_path / "shell.gguf").read_bytes() == both.path.read_bytes()
    for given in (5, b"x", [5]):
        with pytest.raises(QuantError, match="^imatrix: found (5|b'x'), wanted a file, several"):
            quantize_file(model, None, "Q4_K_S", imatrix=given, dry_run=True)
    with pytest.raises(QuantError, match="^imatrix: found no files"):
        quantize_file(model, None, "Q4_K_S", imatrix=[], dry_run=True)
    again = quantize_file(model, tmp_path / "again.gguf", "Q4_K_S", imatrix=flat)
    assert stored(again.path) == found


def test_importances_that_fit_nothing_are_refused(model):
    with pytest.raises(QuantError, match="none of its 1 tensors is in the file"):
        quantize_file(
            model, None, "Q4_K_S", imatrix={"blk.9.attn_v.weight": np.ones(256)}, dry_run=True
        )
    with pytest.raises(QuantError, match="none of its 0 tensors"):
        quantize_file(model, None, "Q4_K_S", imatrix={}, dry_run=True)
    with pytest.raises(QuantError, match="blk.0.attn_v.weight: imatrix has 255 values, wanted 256"):
        quantize_file(
            model, None, "Q4_K_S", imatrix={"blk.0.attn_v.weight": np.ones(255)}, dry_run=True
        )


@pytest.mark.parametrize("middle", ["Q8_0", "F16", "BF16", "Q6_K"])
def test_any_format_converts_to_any_other(model, tmp_path, middle):
    first = quantize_file(model, tmp_path / "middle.gguf", middle, pure=True)
    second = quantize_file(first.path, tmp_path / "new.gguf", "Q4_0", pure=True)
    kind, shape, data = stored(first.path)["blk.0.attn_v.weight"]
    rows = dequantize(np.frombuffer(data, np.uint8).reshape(shape[0], -1), kind)
    assert stored(second.path)["blk.0.attn_v.weight"][2] == quantize(rows, "Q4_0").tobytes()
    back = quantize_file(first.path, tmp_path / "same.gguf", middle, pure=True)
    assert stored(back.path) == stored(first.path)  # nothing to change: byte for byte
    wide = quantize_file(first.path, tmp_path / "wide.gguf", "F32")
    assert stored(wide.path)["blk.0.attn_v.weight"] == ("F32", shape, rows.tobytes())


def test_progress_counts_bytes_to_the_end(model, tmp_path):
    calls = []
    done = quantize_file(
        model,
        tmp_path / "new.gguf",
        "Q8_0",
        progress=lambda *args: calls.append(args),
        num_threads=2,
    )
    assert [name for _, _, name in calls] == list(TENSORS)
    assert calls[-1][:2] == (done.bytes_before, done.bytes_before)
    assert [count for count, _, _ in calls] == sorted(count for count, _, _ in calls)


def test_numbers_that_are_none_stop_the_conversion_and_leave_no_file(tmp_path):
    values = np.ones((4, 64), np.float32)
    values[2, 5] = np.nan
    with GgufWriter(tmp_path / "model.gguf", "llama") as writer:
        writer.add_tensor("output.weight", values)
    with pytest.raises(QuantError, match=r"output.weight: from row 0 on: .*rows\[2, 5\] is nan"):
        quantize_file(tmp_path / "model.gguf", tmp_path / "new.gguf", "Q4_0")
    assert [path.name for path in tmp_path.iterdir()] == ["model.gguf"]


def test_impossible_requests_are_refused(model, tmp_path):
    with pytest.raises(QuantError, match="unknown recipe"):
        quantize_file(model, tmp_path / "new.gguf", "Q4_K_XL")
    (tmp_path / "link.gguf").symlink_to(model)
    for dry_run in (False, True):
        for itself in (model, tmp_path / "link.gguf"):
            with pytest.raises(QuantError, match="is the source itself"):
                quantize_file(model, itself, "Q4_0", dry_run=dry_run)
    with pytest.raises(
        QuantError, match="pure: found with the recipe COPY, which has no base format"
    ):
        quantize_file(model, tmp_path / "new.gguf", "COPY", pure=True)
    with pytest.raises(ConfigError, match="dst: None"):
        quantize_file(model, None, "Q4_0")
    with pytest.raises(GgufError):
        quantize_file(tmp_path / "none.gguf", tmp_path / "new.gguf", "Q4_0")
    with pytest.raises(ConfigError, match="num_threads"):
        quantize_file(model, tmp_path / "new.gguf", "Q4_0", num_threads=-1)


def test_copy_changes_what_an_override_names_and_nothing_else(model, tmp_path):
    done = quantize_file(model, tmp_path / "new.gguf", "COPY", overrides={"ffn_up_exps": "Q6_K"})
    found, before = stored(done.path), stored(model)
    assert found.pop("blk.0.ffn_up_exps.weight")[0] == "Q6_K"
    before.pop("blk.0.ffn_up_exps.weight")
    assert found == before
    with GgufReader(done.path) as reader:
        assert reader.metadata["general.file_type"] == 0


def test_what_a_user_may_not_expect_is_said(model, tmp_path):
    first = quantize_file(model, tmp_path / "first.gguf", "Q4_0", pure=True)
    assert first.notes == ()
    again = quantize_file(
        first.path, None, "Q3_K_S", dry_run=True, imatrix={"blk.0.attn_v.weight": np.ones(256)}
    )
    assert again.notes == (
        "4 tensors are quantised a second time (from Q4_0): the errors of both add up",
        "1 tensors have rows that fill no blocks of the recipe's format: Q4_0 instead",
        "importances for 1 of the 4 tensors that they could help",
    )
    assert all(note in str(again) for note in again.notes)
    assert quantize_file(first.path, None, "F16", dry_run=True).notes == ()
    (note,) = quantize_file(
        model, None, "IQ2_XXS", dry_run=True, overrides={"ffn_down": "F32"}
    ).notes
    assert note == (
        "IQ2_XXS without importances, which llama.cpp would refuse (`oxillama imatrix` "
        "collects them)"
    )


def test_the_importance_matrix_is_not_written_over(model, tmp_path):
    path = write_imatrix(
        tmp_path / "i.gguf",
        {"blk.0.attn_v.weight": np.ones(256, np.float32)},
        {"blk.0.attn_v.weight": 1},
    )
    before = path.read_bytes()
    (tmp_path / "link.gguf").symlink_to(path)
    for dst in (path, tmp_path / "link.gguf"):
        for dry_run in (True, False):
            with pytest.raises(
                QuantError, match="gguf: is the importance matrix, wanted another file"
            ):
                quantize_file(model, dst, "Q4_K_M", imatrix=path, dry_run=dry_run)
    assert path.read_bytes() == before


def test_keys_of_importances_tell_of_the_new_file(model, tmp_path):
    path = write_imatrix(
        tmp_path / "i.gguf",
        {"blk.0.attn_v.weight": np.ones(256, np.float32)},
        {"blk.0.attn_v.weight": 1},
    )

    def keys(source, name, recipe, **options):
        with GgufReader(quantize_file(source, tmp_path / name, recipe, **options).path) as reader:
            return {
                key.rpartition(".")[2]: reader.metadata[key]
                for key in reader.metadata
                if key.startswith("quantize.")
            }

    assert keys(model, "one.gguf", "Q4_K_M", imatrix=path) == {"entries_count": 1, "file": "i.gguf"}
    assert keys(tmp_path / "one.gguf", "copy.gguf", "COPY") == {
        "entries_count": 1,
        "file": "i.gguf",
    }
    assert keys(tmp_path / "one.gguf", "two.gguf", "Q3_K_S") == {}
    given = {"blk.0.attn_v.weight": np.ones(256, np.float32)}
    assert keys(tmp_path / "one.gguf", "two.gguf", "Q3_K_S", imatrix=given) == {"entries_count": 1}
    assert keys(tmp_path / "one.gguf", "two.gguf", "COPY", imatrix=given) == {"entries_count": 0}


@pytest.mark.parametrize("value", [np.nan, np.inf, -1, "x"])
def test_a_dry_run_refuses_importances_that_are_no_weights(model, value):
    with pytest.raises(QuantError, match="imatrix: blk.0.attn_v.weight: "):
        quantize_file(
            model, None, "Q4_K_S", imatrix={"blk.0.attn_v.weight": [value] * 256}, dry_run=True
        )


def test_a_dry_run_refuses_what_a_run_refuses(model, tmp_path):
    for dry_run in (True, False):
        with pytest.raises(ConfigError, match="num_threads: found -1"):
            quantize_file(model, tmp_path / "new.gguf", "Q4_0", num_threads=-1, dry_run=dry_run)
        for dst in (tmp_path / "none" / "new.gguf", tmp_path, tmp_path / "new-00001-of-00002.gguf"):
            with pytest.raises(GgufError):
                quantize_file(model, dst, "Q4_0", dry_run=dry_run)
    whole = model.read_bytes()
    model.write_bytes(whole.replace(b"general.architecture", b"general.architectura", 1))
    for dst in (None, tmp_path / "new.gguf"):
        with pytest.raises(ModelError, match="general.architecture: missing"):
            quantize_file(model, dst, "COPY", dry_run=True)
    assert [path.name for path in tmp_path.iterdir()] == ["model.gguf"]


def test_a_recipe_s_number_is_said_by_its_name(model):
    plan = quantize_file(model, None, "15", dry_run=True)
    assert plan == quantize_file(model, None, "q4_k_m", dry_run=True) and plan.recipe == "Q4_K_M"
    assert str(plan).splitlines()[-1].startswith("Q4_K_M: ")


def test_parts_become_one_file(model, tmp_path):
    names = list(TENSORS)
    for part, held in enumerate((names[:3], names[3:])):
        with GgufWriter(tmp_path / f"m-{part + 1:05}-of-00002.gguf", "llama", part=True) as writer:
            writer.add("split.no", part, "uint16")
            writer.add("split.count", 2, "uint16")
            writer.add("split.tensors.count", len(names), "int32")
            for name in held:
                writer.add_tensor(name, TENSORS[name].astype(np.float32))
    whole = quantize_file(model, tmp_path / "whole.gguf", "Q4_K_S", overrides={"attn_v": "Q8_0"})
    joined = quantize_file(
        tmp_path / "m-00001-of-00002.gguf",
        tmp_path / "joined.gguf",
        "Q4_K_S",
        overrides={"attn_v": "Q8_0"},
    )
    kinds = {plan.name: plan.target for plan in whole.tensors}
    assert {plan.name: plan.target for plan in joined.tensors} == kinds
    assert stored(joined.path) == stored(whole.path)
    with pytest.raises(QuantError, match="is the source itself"):
        quantize_file(
            tmp_path / "m-00001-of-00002.gguf", tmp_path / "m-00002-of-00002.gguf", "Q4_0"
        )


def test_recipes_and_formats_are_taken_in_any_case_and_make_the_same_file(model, tmp_path):
    upper = quantize_file(model, tmp_path / "upper.gguf", "Q4_K_M", overrides={"attn_v": "Q8_0"})
    lower = quantize_file(model, tmp_path / "lower.gguf", "q4_k_m", overrides={"attn_v": "q8_0"})
    assert lower.path.read_bytes() == upper.path.read_bytes() and lower.tensors == upper.tensors


@pytest.mark.parametrize("stop", [KeyboardInterrupt, OSError])
def test_a_conversion_that_is_stopped_leaves_what_was_there(model, tmp_path, stop):
    target = tmp_path / "new.gguf"
    target.write_bytes(b"old")

    def progress(done, total, name):
        raise stop

    with pytest.raises(stop):
        quantize_file(model, target, "Q4_0", progress=progress)
    assert target.read_bytes() == b"old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.gguf", "new.gguf"]


def test_a_full_disk_is_said_and_leaves_what_was_there(model, tmp_path, monkeypatch):
    target = tmp_path / "new.gguf"
    target.write_bytes(b"old")

    def full(self, info, stored, at=0):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(GgufWriter, "_put", full)
    with pytest.raises(GgufError, match="new.gguf: cannot be written: No space left"):
        quantize_file(model, target, "Q4_0")
    assert target.read_bytes() == b"old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.gguf", "new.gguf"]


def test_slabs_change_no_byte(model, tmp_path, monkeypatch):
    whole = stored(quantize_file(model, tmp_path / "whole.gguf", "Q4_K_M").path)
    for slab in (100, 256, 1000):
        monkeypatch.setattr("oxillama.quant.file._SLAB", slab)
        assert stored(quantize_file(model, tmp_path / "slabs.gguf", "Q4_K_M").path) == whole


def test_scalars_vectors_and_integers_survive(tmp_path):
    with GgufWriter(tmp_path / "model.gguf", "llama") as writer:
        writer.add_tensor("scalar", np.array(1.5, np.float16))
        writer.add_tensor("vector.weight", np.arange(7, dtype=np.float16))
        writer.add_tensor("ids.weight", np.arange(64, dtype=np.int32).reshape(2, 32))
    before = stored(tmp_path / "model.gguf")
    assert (
        stored(quantize_file(tmp_path / "model.gguf", tmp_path / "new.gguf", "Q8_0").path) == before
    )
    wide = stored(quantize_file(tmp_path / "model.gguf", tmp_path / "wide.gguf", "F32").path)
    assert wide["scalar"] == ("F32", (), np.float32(1.5).tobytes())
    assert wide["vector.weight"] == ("F32", (7,), np.arange(7, dtype=np.float32).tobytes())
    assert wide["ids.weight"] == before["ids.weight"]


def test_a_tensor_is_written_slab_by_slab(model, tmp_path, monkeypatch):
    """None is whole in memory: each piece that a writer gets is one slab's."""
    monkeypatch.setattr("oxillama.quant.file._SLAB", 1 << 12)
    plain, sizes = GgufWriter._put, []

    def counted(self, info, stored, at=0):
        if info.type_name == "Q4_0":
            sizes.append(stored.nbytes)
        plain(self, info, stored, at)

    monkeypatch.setattr(GgufWriter, "_put", counted)
    quantize_file(model, tmp_path / "new.gguf", "Q4_0")
    assert max(sizes) == (1 << 12) // 32 * 18


@pytest.mark.parametrize("name", ["llama", "mixtral", "mamba2", "deepseek_v2", "gpt_oss", "lfm2"])
@pytest.mark.parametrize("recipe", ["Q4_K_M", "Q8_0", "IQ2_XS", "TQ2_0"])
def test_models_of_every_kind_convert(cases, tmp_path, name, recipe):
    source = cases / "arch" / name / "f32.gguf"
    done = quantize_file(source, tmp_path / "new.gguf", recipe)
    found = stored(done.path)
    for tensor, (kind, shape, data) in stored(source).items():
        assert found[tensor][1] == shape
        if found[tensor][0] == kind:
            assert found[tensor][2] == data
    assert done.bytes_after < 0.4 * done.bytes_before
