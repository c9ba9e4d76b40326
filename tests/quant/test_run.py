"""A model runs in every format, and says the same bits on every instruction set."""

import numpy as np
import pytest

from oxillama._core.kernels import isa_available
from oxillama.gguf import GgufReader
from oxillama.model import load_model
from oxillama.quant import formats
from tests.model import tiny
from tests.model.stepping import logits

IDS = np.arange(21) * 37 % tiny.VOCAB
KEYS = {
    "llama.block_count": 1,
    "llama.embedding_length": 256,
    "llama.feed_forward_length": 256,
    "llama.attention.head_count": 8,
}
WIDE = (
    {name: None for name in tiny.shapes("llama") if name.startswith(("blk.1", "blk.2"))}
    | {
        "token_embd.weight": (tiny.VOCAB, 256),
        "output.weight": (tiny.VOCAB, 256),
        "output_norm.weight": (256,),
        "blk.0.attn_norm.weight": (256,),
        "blk.0.ffn_norm.weight": (256,),
        "blk.0.attn_k.weight": (64, 256),
        "blk.0.attn_v.weight": (64, 256),
        # fmt: skip
    }
    | {
        f"blk.0.{name}.weight": (256, 256)
        for name in ("attn_q", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
    }
)


@pytest.mark.parametrize("name", list(formats()))
def test_a_model_of_every_format_runs_the_same_on_every_instruction_set(
    name, tmp_path, monkeypatch
):
    path = tmp_path / "m.gguf"
    tiny.write(path, "llama", formats=lambda tensor: name, keys=KEYS, tensors=WIDE)
    said = []
    for isa in isa_available():
        monkeypatch.setenv("OXILLAMA_ISA", isa)
        with GgufReader(path) as reader:
            model = load_model(reader, num_threads=2)
            said += [logits(model, IDS), logits(model, IDS, chunk=1)]
    assert np.isfinite(said[0]).all() and said[0].std() > 0
    assert len({rows.tobytes() for rows in said}) == 1
