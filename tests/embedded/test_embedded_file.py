"""The embedded model file says all that an engine needs to know, and its goldens belong to it."""

import json
from pathlib import Path

import jinja2
import pytest

from oxillama import errors
from oxillama.gguf import GgufReader

MODEL = Path(errors.__file__).parent / "embedded.gguf"
GOLDEN = Path(__file__).parent / "golden.json"
SPECIALS = ["<|begin|>", "<|end|>", "<|im_start|>", "<|im_end|>", "<|pad|>"]


@pytest.fixture(scope="module")
def reader():
    with GgufReader(MODEL) as opened:
        yield opened


@pytest.fixture(scope="module")
def goldens():
    return json.loads(GOLDEN.read_text())["cases"]


def test_the_file_is_small_enough_for_the_wheel():
    assert MODEL.stat().st_size < 4_000_000


def test_the_hyper_parameters_are_complete(reader):
    expected = {
        "general.architecture": "llama",
        "general.license": "MIT",
        "llama.context_length": 1024,
        "llama.embedding_length": 256,
        "llama.block_count": 5,
        "llama.feed_forward_length": 512,
        "llama.attention.head_count": 8,
        "llama.attention.head_count_kv": 4,
        "llama.rope.dimension_count": 32,
        "llama.rope.freq_base": 10000.0,
        "llama.vocab_size": 2048,
    }
    assert {key: reader.metadata[key] for key in expected} == expected
    assert reader.metadata["llama.attention.layer_norm_rms_epsilon"] == pytest.approx(1e-5)


def test_every_matrix_is_q8_0_with_columns_that_k_quants_divide_too(reader):
    matrices = [info for info in reader.tensors.values() if len(info.shape) == 2]
    assert {info.type_name for info in matrices} == {"Q8_0"}
    assert [info.name for info in matrices if info.shape[-1] % 256] == []
    assert {info.type_name for info in reader.tensors.values() if len(info.shape) == 1} == {"F32"}


def test_the_tensors_are_those_of_a_tied_llama(reader):
    parts = (
        "attn_norm",
        "attn_q",
        "attn_k",
        "attn_v",
        "attn_output",
        "ffn_norm",
        "ffn_gate",
        "ffn_up",
        "ffn_down",
    )
    expected = {"token_embd.weight", "output_norm.weight"} | {
        f"blk.{i}.{part}.weight" for i in range(5) for part in parts
    }
    assert set(reader.tensors) == expected


def test_the_vocabulary_is_whole(reader):
    tokens, types = (
        reader.metadata["tokenizer.ggml.tokens"],
        reader.metadata["tokenizer.ggml.token_type"],
    )
    assert (reader.metadata["tokenizer.ggml.model"], reader.metadata["tokenizer.ggml.pre"]) == (
        "gpt2",
        "gpt-2",
    )
    assert len(set(tokens)) == len(tokens) == len(types) == 2048
    assert list(tokens[:5]) == SPECIALS
    assert list(types) == [3] * 5 + [1] * 2043
    known = set(tokens)
    for merge in reader.metadata["tokenizer.ggml.merges"]:
        left, right = merge.split(" ")
        assert {left, right, left + right} <= known


def test_the_special_ids_name_their_tokens(reader):
    tokens = reader.metadata["tokenizer.ggml.tokens"]
    found = {
        name: tokens[int(reader.metadata[f"tokenizer.ggml.{name}_token_id"])]
        for name in ("bos", "eos", "eot", "padding")
    }
    assert found == {
        "bos": "<|begin|>",
        "eos": "<|end|>",
        "eot": "<|im_end|>",
        "padding": "<|pad|>",
    }
    assert reader.metadata["tokenizer.ggml.add_bos_token"] is True


def test_the_chat_template_renders_system_user_and_assistant(reader):
    template = jinja2.Environment().from_string(reader.metadata["tokenizer.chat_template"])
    messages = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Hi!"},
        {"role": "assistant", "content": "Hello!"},
    ]
    text = (
        "<|begin|><|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nHi!<|im_end|>\n"
        "<|im_start|>assistant\nHello!<|im_end|>\n"
    )
    assert (
        template.render(messages=messages, bos_token="<|begin|>", add_generation_prompt=False)
        == text
    )
    assert (
        template.render(messages=messages, bos_token="<|begin|>", add_generation_prompt=True)
        == text + "<|im_start|>assistant\n"
    )


def test_every_golden_ends_by_itself_and_names_its_first_thin_choice(goldens):
    assert goldens[0]["prompt"] == "Once upon a time"
    assert len(goldens[0]["ids"]) >= 64
    for case in goldens:
        thin = [i for i, margin in enumerate(case["margins"]) if margin < 1e-3]
        assert case["ids"][-1] in (1, 3)
        assert len(case["ids"]) == len(case["margins"])
        assert case["first_thin"] == (thin[0] if thin else None)
