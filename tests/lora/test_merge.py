"""`merge_lora` and the command line."""

import numpy as np
import pytest

import oxillama
from oxillama import ConfigError, LoraError
from oxillama.cli import main
from oxillama.cli.lora import file_and_scale
from oxillama.gguf import GgufReader, GgufWriter
from oxillama.model.tensors import Tensor, unpacked
from tests.lora.made import merged, random_pair, write_lora
from tests.model.invented import invent


@pytest.mark.parametrize("kind", ["F32", "Q8_0"])
@pytest.mark.parametrize("arch", ["llama", "deepseek2"])
def test_merged_weights_are_the_sums(arch, kind, tmp_path):
    reader, rng = invent(tmp_path / "m.gguf", arch, kind=kind), np.random.default_rng(5)
    names = [
        n for n in reader.tensors if n.endswith(("exps.weight", "output.weight", "embd.weight"))
    ]
    pairs = {n: random_pair(n, tuple(reader.tensors[n].shape), 4, rng) for n in names}
    write_lora(tmp_path / "a.gguf", arch, pairs, alpha=2.0)
    told = oxillama.merge_lora(
        tmp_path / "m.gguf", [(tmp_path / "a.gguf", 3.0)], tmp_path / "out.gguf"
    )
    assert set(told.changed) == set(names)
    assert set(told.rounded) == ({n for n in names if reader.tensors[n].type_name == "Q8_0"})
    with GgufReader(tmp_path / "out.gguf") as out:
        want = GgufReader(merged(tmp_path / "want.gguf", reader, [(pairs, 3.0 * 2.0 / 4)]))
        assert dict(out.metadata) == dict(reader.metadata)
        assert list(out.tensors) == list(reader.tensors)
        for name, info in out.tensors.items():
            assert (info.type_name, info.shape) == (
                reader.tensors[name].type_name,
                reader.tensors[name].shape,
            )
            if name not in names:
                assert bytes(out.data(name)) == bytes(reader.data(name))
                continue
            rows = int(np.prod(info.shape[:-1]))
            found = unpacked(out, Tensor(name, info.type_name, (rows, info.shape[-1])))
            wanted = unpacked(want, Tensor(name, "F32", (rows, info.shape[-1])))
            error = np.abs(found - wanted).max()
            assert error <= (0 if info.type_name == "F32" else np.abs(wanted).max() / 200)


def test_a_tensor_is_summed_some_rows_at_a_time(tmp_path, monkeypatch):
    reader, rng = invent(tmp_path / "m.gguf", "deepseek2"), np.random.default_rng(5)
    names = [n for n in reader.tensors if n.endswith(("exps.weight", "embd.weight"))]
    pairs = {n: random_pair(n, tuple(reader.tensors[n].shape), 4, rng) for n in names}
    write_lora(tmp_path / "a.gguf", "deepseek2", pairs)
    told = []
    for path, slab in (("whole.gguf", 1 << 20), ("pieces.gguf", 200)):
        monkeypatch.setattr("oxillama.lora.merge._SLAB", slab)
        oxillama.merge_lora(
            tmp_path / "m.gguf",
            tmp_path / "a.gguf",
            tmp_path / path,
            progress=lambda *step: told.append(step),
        )
    assert (tmp_path / "pieces.gguf").read_bytes() == (tmp_path / "whole.gguf").read_bytes()
    sizes = [info.nbytes for info in reader.tensors.values()]
    ends = zip(np.cumsum(sizes).tolist(), reader.tensors)
    assert told == [(done, sum(sizes), name) for done, name in ends] * 2


def test_adapters_of_different_tensors_are_merged_into_a_set_of_files(tmp_path):
    reader, rng = invent(tmp_path / "m.gguf", "llama"), np.random.default_rng(5)
    names = ("blk.0.attn_q.weight", "token_embd.weight")
    pairs = [{name: random_pair(name, tuple(reader.tensors[name].shape), 4, rng)} for name in names]
    paths = [write_lora(tmp_path / f"{i}.gguf", "llama", each) for i, each in enumerate(pairs)]
    half = len(reader.tensors) // 2
    for number in range(2):
        with GgufWriter(tmp_path / "part.gguf", "llama") as writer:
            for key, value in {"split.no": number, "split.count": 2}.items():
                writer.add(key, value, "uint16")
            for key, value in reader.metadata.items() if not number else ():
                if key != "general.architecture":
                    writer.add(key, value, reader.kv_types[key])
            for name in list(reader.tensors)[number * half : half if not number else None]:
                info = reader.tensors[name]
                writer.add_tensor(
                    name, reader.data(name), type_name=info.type_name, shape=info.shape
                )
        (tmp_path / "part.gguf").rename(tmp_path / f"s-0000{number + 1}-of-00002.gguf")
    merge = oxillama.merge_lora
    merge(tmp_path / "m.gguf", paths, tmp_path / "one.gguf")
    merge(tmp_path / "s-00001-of-00002.gguf", paths, tmp_path / "set.gguf")
    with GgufReader(tmp_path / "one.gguf") as one, GgufReader(tmp_path / "set.gguf") as whole:
        want = GgufReader(
            merged(tmp_path / "want.gguf", reader, [(each, 8.0 / 4) for each in pairs])
        )
        for name in names:
            assert bytes(one.data(name)) == bytes(want.data(name)) != bytes(reader.data(name))
        assert one.kv_types == whole.kv_types == reader.kv_types
        assert dict(whole.metadata) == dict(reader.metadata)
        assert list(whole.tensors) == list(reader.tensors)
        for name in whole.tensors:
            assert bytes(whole.data(name)) == bytes(one.data(name))


def test_adapters_to_merge_are_named_as_those_of_a_request(tmp_path):
    reader, rng = invent(tmp_path / "m.gguf", "llama"), np.random.default_rng(5)
    name, path = "blk.0.attn_q.weight", tmp_path / "a.gguf"
    pair = random_pair(name, tuple(reader.tensors[name].shape), 4, rng)
    write_lora(path, "llama", {name: pair})
    written = set()
    for adapters in (path, str(path), (path, 1), [path], [(path, 1.0)], iter([path])):
        oxillama.merge_lora(tmp_path / "m.gguf", adapters, tmp_path / "out.gguf")
        written.add((tmp_path / "out.gguf").read_bytes())
    assert len(written) == 1
    for adapters, told in (
        (5, "found int, wanted an adapter's name or path, or a list"),
        ([path, 5, 6], "found 5, wanted a path or .path, scale."),
        ([(path, 1.0, 2)], "wanted a path or .path, scale."),
        ([(5, 1.0)], "found int, wanted a path"),
        ([(path, "x")], "^scale: found 'x', wanted a number"),
    ):
        with pytest.raises(ConfigError, match=told):
            oxillama.merge_lora(tmp_path / "m.gguf", adapters, tmp_path / "none.gguf")
    assert not (tmp_path / "none.gguf").exists()


def test_merging_refuses_what_does_not_fit_and_writes_nothing(tmp_path):
    reader, rng = invent(tmp_path / "m.gguf", "llama"), np.random.default_rng(5)
    name = "blk.0.attn_q.weight"
    good = {name: random_pair(name, tuple(reader.tensors[name].shape), 4, rng)}
    wrong = {name: random_pair(name, (128, 63), 4, rng)}
    write_lora(tmp_path / "good.gguf", "llama", good)
    write_lora(tmp_path / "wrong.gguf", "llama", wrong)
    model, out = tmp_path / "m.gguf", tmp_path / "out.gguf"
    for adapters, target, error, told in (
        ([("wrong.gguf", 1.0)], out, LoraError, "blk.0.attn_q.weight: factors"),
        ([], out, ConfigError, "found none"),
        ([("good.gguf", float("inf"))], out, ConfigError, "scale: found inf"),
        ([("good.gguf", 1.0)], model, ConfigError, "is the base itself"),
        ([("good.gguf", 1.0)], tmp_path / "good.gguf", ConfigError, "is the adapter"),
    ):
        before = model.read_bytes()
        with pytest.raises(error, match=told):
            oxillama.merge_lora(model, [(tmp_path / path, s) for path, s in adapters], target)
        assert not out.exists() and model.read_bytes() == before


def test_the_command_line_merges_and_adds(tmp_path, capsys):
    with GgufReader(oxillama.embedded_path()) as reader:
        arch, name = reader.metadata["general.architecture"], "blk.0.attn_q.weight"
        pair = random_pair(name, tuple(reader.tensors[name].shape), 4, np.random.default_rng(5))
    a, b = (pair[0] * 400, pair[1])
    path = write_lora(tmp_path / "a:2.gguf", arch, {name: (a, b)}, alpha=4.0)
    out = tmp_path / "out.gguf"
    assert main(["merge-lora", str(oxillama.embedded_path()), f"{path}:0.5", str(out)]) == 0
    assert capsys.readouterr().out == f"{out}: 1 tensors changed, 1 of them quantised again\n"
    with oxillama.load() as engine:
        engine.apply_lora(path, 0.5)
        want = engine.generate("Once", max_tokens=8, temperature=0.0).text
        engine.loras.clear_loras()
        assert engine.generate("Once", max_tokens=8, temperature=0.0).text != want
    given = ["run", "-p", "Once", "--temp", "0", "-n", "8", "--lora", f"{path}:0.5"]
    assert main(given) == 0
    assert capsys.readouterr().out == f"Once{want}\n"
    assert main([*given[:-1], str(tmp_path / "none.gguf")]) == 1
    assert "no such file" in capsys.readouterr().err


@pytest.mark.parametrize(
    "given, want",
    [("a.gguf", ("a.gguf", 1.0)), ("a.gguf:0.5", ("a.gguf", 0.5)), ("a:b", ("a:b", 1.0))],
)
def test_file_and_scale(given, want):
    assert file_and_scale(given) == want
