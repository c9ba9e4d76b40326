"""Adapters on every registered architecture: logits are those of the model whose weights were
changed, fused products, experts, embedding and tied heads included.
"""

import numpy as np
import pytest

from oxillama.errors import LoraError
from oxillama.gguf import GgufReader
from oxillama.lora.file import LoraFile, checked_pairs, read_gguf_lora
from oxillama.lora.fit import fit
from oxillama.lora.stack import Adapters
from oxillama.model import architectures, load_model
from tests.lora.made import merged, random_pair, write_lora
from tests.model.invented import VOCAB, invent
from tests.model.stepping import batch_of, memory_of, sourced_step, step

IDS = (np.arange(23) * 37 % VOCAB).astype(np.int32)


def rows_of(model, adapters=None, *, chunk=512):
    """The program's rows for IDS: logits, or hidden rows where it has none; where an encoder reads
    the first ten, those behind them.
    """
    memory, out = memory_of(model, 2, kv_type="f32"), []
    if model.source is not None:
        more = dict(adapters=None if adapters is None else [adapters.factors])
        out.append(sourced_step(model, [(IDS[:11], 0, range(2), 10)], memory, **more))
        for start in range(11, len(IDS), chunk):
            part = (IDS[start : start + chunk], start, range(2), 10)
            out.append(sourced_step(model, [part], memory, **more))
        return np.concatenate(out)
    for start in range(0, len(IDS), chunk):
        batch = batch_of(
            [(IDS[start : start + chunk], start, range(2))],
            memory,
            adapters=None if adapters is None else [adapters.factors],
        )
        out.append(step(model, batch, memory))
    return np.concatenate(out)


@pytest.mark.parametrize("arch", architectures())
def test_an_adapter_of_every_matrix_equals_the_changed_model(arch, tmp_path):
    reader = invent(tmp_path / "m.gguf", arch)
    rng = np.random.default_rng(3)
    own = (".lora_a", ".lora_b")  # the file's own adapters, which no other one changes
    matrices = {
        name: tuple(info.shape)
        for name, info in reader.tensors.items()
        if len(info.shape) > 1 and not name.endswith(own)
    }
    model = load_model(reader, num_threads=2)
    ops = [op for tape in (model.tape, model.tape.source) if tape is not None for op in tape.ops]
    used = {t.name for op in ops for t in op.params.get("weights", ())}
    products = {name for name in used if not name.endswith(own)}
    first, second = {}, {}
    for name, shape in matrices.items():
        pair = random_pair(name, shape, 3, rng)
        halves = {f"{name}.lora_a": pair[0], f"{name}.lora_b": pair[1]}
        try:
            fit(model, LoraFile("one", arch, 8.0, checked_pairs(halves, "one")), "one")
        except LoraError as error:
            assert name in str(error)
            assert name not in products
            continue
        first[name] = pair
        second[name] = random_pair(name, shape, 17, rng)
    assert products <= set(first)
    files = [
        read_gguf_lora(write_lora(tmp_path / f"{n}.gguf", arch, pairs, alpha=alpha))
        for n, pairs, alpha in (("a", first, 6.0), ("b", second, 0.0))
    ]
    adapters = Adapters(zip([fit(model, each, each.label) for each in files], (0.5, -1.25)))
    before = rows_of(model)
    got = rows_of(model, adapters)
    changed = merged(tmp_path / "merged.gguf", reader, [(first, 0.5 * 6.0 / 3), (second, -1.25)])
    want = rows_of(load_model(GgufReader(changed), num_threads=2))
    largest = np.abs(want[np.abs(want) < 1e30]).max()  # tokens that a file bans are beyond it
    assert np.abs(got - want).max() <= 1e-4 * largest
    assert np.abs(got - before).max() > 1e-2 * largest
    assert rows_of(model).tobytes() == before.tobytes()
    if model.config.causal:
        assert rows_of(model, adapters, chunk=5).tobytes() == got.tobytes()
    alone = load_model(GgufReader(tmp_path / "m.gguf"), num_threads=1)
    again = Adapters(zip([fit(alone, each, each.label) for each in files], (0.5, -1.25)))
    assert rows_of(alone, again).tobytes() == got.tobytes()
