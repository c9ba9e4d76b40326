"""Encoders, embedders and rerankers under the engine: the vectors and scores that others give, the
same bits in any company, and what they cannot do said by name.
"""

from functools import cache

import numpy as np
import pytest

import oxillama
from oxillama import PoolingMode
from oxillama.engine.config import EngineConfig
from oxillama.engine.embedding import all_pooled, submit_embedding
from oxillama.errors import ConfigError, ContextError, EngineError, NoNextToken, TokenizerError
from oxillama.gguf import GgufReader
from oxillama.model import architectures, load_model
from oxillama.opening import core_over
from oxillama.tokenizer import TokenizerBridge
from tests.conftest import CASES
from tests.model.invented import VOCAB, encodes, invent

ENCODERS = [arch for arch in architectures() if encodes(arch)]
TEXTS = [[(7 * i + j) % VOCAB for i in range(n)] for j, n in enumerate((70, 1, 33, 16, 120, 5))]
FOLDERS = (
    sorted(each.name for each in (CASES / "embed").iterdir())
    if CASES.joinpath("embed").is_dir()
    else []
)


@pytest.fixture(scope="module", params=ENCODERS)
def path(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("m") / "m.gguf"
    invent(path, request.param, kind="Q8_0").close()
    return path


@pytest.mark.parametrize("pooling", ("mean", "cls", "none"))
def test_a_vector_is_the_same_in_any_company_at_any_number_of_threads(path, pooling):
    with oxillama.load(path, num_threads=1, max_pages=64) as engine:
        alone = [engine.embed(text, pooling=pooling) for text in TEXTS]
    with oxillama.load(path, num_threads=2, prefill_chunk_size=48) as engine:
        together = engine.embed_batch(TEXTS, pooling=pooling)
    assert all(np.array_equal(*pair) for pair in zip(alone, together, strict=True))


def test_texts_that_want_one_anothers_pages_all_get_their_vector(path):
    model = load_model(GgufReader(path), num_threads=1)
    found = []
    for pages in (None, 9):
        core = core_over(model, EngineConfig(max_pages=pages, prefill_chunk_size=30))
        work = [submit_embedding(core, text, pooling="mean", model=model) for text in TEXTS]
        found.append(np.stack(all_pooled(work)))
        assert core.metrics().pages_leaked == 0
        core.close()
        assert core.pool.pages_used == 0
    assert np.array_equal(*found)


def test_what_an_encoder_cannot_do_is_said_by_name(path):
    with oxillama.load(path) as engine:
        name = engine.config.architecture
        assert not engine.config.causal and not engine.config.generates
        for call, said in (
            (lambda: engine.generate(TEXTS[0], max_tokens=2), "generate"),
            (lambda: engine.beam_generate(TEXTS[0]), "beam_generate"),
            (lambda: next(iter(engine.stream(TEXTS[0]))), "generate"),
            (lambda: engine.logits(TEXTS[0]), "logits"),
            (lambda: engine.prefill(TEXTS[0]), "prefill"),
        ):
            with pytest.raises(EngineError, match=f"{said}: {name} is an encoder"):
                call()
        assert engine.embed(TEXTS[0]).shape == (engine.config.hidden_size,)


def test_a_text_longer_than_the_model_takes_is_refused(path):
    with oxillama.load(path) as engine:
        assert engine.context_size == 256
        engine.embed([1] * 256)
        with pytest.raises(ContextError, match="257 tokens, the context holds 256"):
            engine.embed([1] * 257)


def test_a_text_longer_than_a_chunk_is_one_step(path):
    with oxillama.load(path, prefill_chunk_size=20) as chunked, oxillama.load(path) as engine:
        assert np.array_equal(chunked.embed(TEXTS[4]), engine.embed(TEXTS[4]))


@cache
def facts(name):
    return np.load(CASES / "embed" / name / "embeddings.npz")


def judged(engine, name, kind, *, least):
    """Every vector, score and row that others give; the tolerance is of the largest number."""
    given, checked = facts(name), 0
    for i in range(4):
        ids = given[f"tokens_{i}"].tolist()
        for what, pooling in (("pooled", None), ("score", "rank"), ("hidden", "none")):
            if f"hf_{what}_{i}" not in given:
                continue
            wanted = given[f"hf_{what}_{i}"]
            normalize = None if what == "score" else False
            found = engine.embed(ids, pooling=pooling, normalize=normalize)
            allowed, theirs = least * np.abs(wanted).max(), f"lcpp_{kind}_{what}_{i}"
            if least > 1e-2 and theirs in given:
                allowed = max(allowed, 1.5 * np.abs(given[theirs] - wanted).max())
            assert found.shape == wanted.shape
            assert np.abs(found - wanted).max() <= allowed, (what, i)
            checked += 1
    assert checked >= 4


@pytest.mark.parametrize("name", FOLDERS)
def test_f32_files_give_what_others_give(cases, name):
    with oxillama.load(cases / "embed" / name / "f32.gguf", kv_type="f32") as engine:
        judged(engine, name, "f32", least=2e-5)


# How far the rows of llama.cpp (0.3.36 of its Python package) are off in the T5 file, relative to
# the largest number; the facts hold none. Scores of this model are not scaled, so the rounding of
# its weights alone, with activations in float32, is as much: 0.016, 0.033, 0.12, 0.16.
_T5_OF_LLAMA_CPP = (0.0277, 0.0560, 0.159, 0.138)


@pytest.mark.parametrize("name", FOLDERS)
def test_q8_0_files_stay_as_near_as_the_format_allows(cases, name):
    with oxillama.load(cases / "embed" / name / "q8_0.gguf") as engine:
        if name != "t5_encoder":
            judged(engine, name, "q8_0", least=0.06)
            return
        given = facts(name)
        for i, theirs in enumerate(_T5_OF_LLAMA_CPP):
            wanted = given[f"hf_hidden_{i}"]
            found = engine.embed(given[f"tokens_{i}"].tolist(), pooling="none", normalize=False)
            allowed = max(0.06, 1.5 * theirs) * np.abs(wanted).max()
            assert np.abs(found - wanted).max() <= allowed, i


def test_an_encoder_says_that_it_does_not_chat(cases):
    with (
        oxillama.load(cases / "embed" / "bert_cls" / "f32.gguf") as engine,
        pytest.raises(NoNextToken, match="^chat: bert is an encoder, .* wanted embed, rerank"),
    ):
        engine.chat([{"role": "user", "content": "hi"}])


def test_an_encoder_says_that_there_is_no_generation_to_measure(cases):
    with oxillama.load(cases / "embed" / "bert_cls" / "f32.gguf") as engine:
        with (
            engine.raw_loop() as loop,
            pytest.raises(NoNextToken, match="^prefill: bert is an encoder, which has no next"),
        ):
            loop.prefill(0, [1, 2, 3])
        assert len(engine.embed([1, 2, 3])) == engine.config.hidden_size


def test_pooling_comes_from_the_file_and_can_be_overridden(cases):
    given = facts("bert_cls")
    with oxillama.load(cases / "embed" / "bert_cls" / "f32.gguf") as engine:
        ids = given["tokens_2"].tolist()
        rows = engine.embed(ids, pooling=PoolingMode.NONE, normalize=False)
        assert engine.config.pooling == "cls"
        assert np.array_equal(engine.embed(ids, normalize=False), rows[0])
        assert np.array_equal(engine.embed(ids, pooling="last", normalize=False), rows[-1])
        assert np.array_equal(engine.embed_with(ids, "max", normalize=False), rows.max(0))
        assert np.array_equal(
            engine.embed_batch([ids], pooling="mean")[0], engine.embed(ids, pooling="mean")
        )
        assert np.isclose(np.linalg.norm(engine.embed(ids)), 1, atol=1e-6)
        assert all(each.agrees for each in engine.diagnose(ids))
        with pytest.raises(ConfigError, match="pooling: found 'sum', wanted one of last"):
            engine.embed(ids, pooling="sum")
        with pytest.raises(ConfigError, match="pooling: found rank, bert has no classifier"):
            engine.embed(ids, pooling="rank")
        with pytest.raises(ConfigError, match="rerank: bert has no classifier"):
            engine.rerank("a", ["b"])


def test_the_rows_of_an_embedder_are_those_before_its_dense_layers(cases):
    with oxillama.load(cases / "embed" / "embeddinggemma_dense" / "f32.gguf") as engine:
        ids = facts("embeddinggemma_dense")["tokens_1"].tolist()
        rows = engine.embed(ids, pooling="none", normalize=False)
        assert np.abs(engine.embed(ids, normalize=False) - rows.mean(0)).max() > 0.1


@pytest.mark.parametrize(
    ("name", "between"),
    [("bert_rerank", 1), ("xlm_roberta_rerank", 2), ("modernbert_rerank_mean", 1)],
)
def test_a_reranker_reads_a_pair_of_texts(cases, name, between):
    with oxillama.load(cases / "embed" / name / "f32.gguf") as engine:
        v, ids = engine.tokenizer.vocabulary, lambda text: engine.tokenize(text, add_special=False)
        pair = [v.special["bos"], *ids("a cat"), *[v.special["sep"]] * between, *ids("the dog")]
        wanted = engine.embed([*pair, v.special["eos"]], pooling="rank")
        assert engine.score("a cat", "the dog") == wanted[0]
        documents = ["the dog", "", "a cat", "the dog", "one [SEP] two </s>"]
        found = engine.rerank("a cat", documents)
        scores = [engine.score("a cat", each) for each in documents]
        assert found == sorted(enumerate(scores), key=lambda each: (-each[1], each[0]))
        assert [each.score for each in found] == sorted(scores, reverse=True)
        assert engine.rerank("a cat", iter(documents), top_n=2) == found[:2]
        assert engine.rerank("a cat", []) == []
        # control tokens in a text are text
        assert engine.tokenizer.encode_pair("x", "[SEP]</s>").count(v.special["sep"]) == between + 1


def test_yes_or_no_is_asked_in_the_files_own_words(cases):
    with oxillama.load(cases / "embed" / "qwen3_reranker" / "f32.gguf", kv_type="f32") as engine:
        template = engine.loaded.model.reader.metadata["tokenizer.chat_template.rerank"]
        whole = template.replace("{query}", "a cat").replace("{document}", "the dog")
        wanted = engine.embed(engine.tokenize(whole, add_special=False), pooling="rank")
        assert engine.config.pooling == "rank" and engine.config.labels == ("yes", "no")
        assert engine.score("a cat", "the dog") == wanted[0]
        assert engine.score("a cat", "the dog", label="no") == wanted[1]
        assert np.isclose(wanted.sum(), 1)
        # a place or a control token in a text is text
        assert engine.score("{document}", "<|im_end|>") != engine.score("a cat", "<|im_end|>")


def test_of_several_labels_the_caller_says_which(cases):
    with oxillama.load(cases / "embed" / "modernbert_rerank_cls3" / "f32.gguf") as engine:
        with pytest.raises(ConfigError, match="label: found none, .* wanted one of no, maybe, yes"):
            engine.score("a", "b")
        with pytest.raises(ConfigError, match="label: found 'sure', wanted one of no, maybe, yes"):
            engine.score("a", "b", label="sure")
        pair = engine.tokenizer.encode_pair("a", "b")
        scores = engine.embed(pair, pooling="rank")
        assert engine.score("a", "b", label="maybe") == scores[1]
        assert np.array_equal(engine.embed_batch([pair, pair], pooling="rank"), [scores, scores])
        with pytest.raises(ConfigError, match="normalize: found True and pooling .rank."):
            engine.embed(pair, pooling="rank", normalize=True)


def test_arguments_of_rerank_are_checked(cases):
    with oxillama.load(cases / "embed" / "bert_rerank" / "f32.gguf") as engine:
        with pytest.raises(ConfigError, match="rerank: found str, wanted a list of documents"):
            engine.rerank("a", "b")
        with pytest.raises(ConfigError, match="top_n: found 0"):
            engine.rerank("a", ["b"], top_n=0)
        with pytest.raises(TokenizerError, match=r"^documents\[1\]: found int, wanted str"):
            engine.rerank("a", ["b", 3])
        with pytest.raises(TokenizerError, match="^document: found list, wanted str"):
            engine.score("a", ["b"])
        with pytest.raises(ContextError, match=r"^documents\[1\]: prompt: "):
            engine.rerank("a", ["b", "word " * 300])


def test_texts_that_nothing_would_separate_are_no_pair(cases):
    bridge = TokenizerBridge.from_gguf(cases / "embed" / "roberta_mean" / "f32.gguf")
    with pytest.raises(TokenizerError, match="the file has no separator of two texts"):
        bridge.encode_pair("a", "b")


@pytest.mark.parametrize(("ends", "pair"), [(False, None), (True, [1, 3, 2, 4, 2])])
def test_a_pair_needs_no_token_that_is_not_put_into_it(ends, pair):
    """The vocabulary of a language model names no separator."""
    bridge = TokenizerBridge.from_metadata({
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": ["<unk>", "<s>", "</s>", "a", "b"],
        "tokenizer.ggml.scores": [0.0] * 5,
        "tokenizer.ggml.token_type": [2, 3, 3, 1, 1],
        "tokenizer.ggml.add_space_prefix": False,
        "tokenizer.ggml.add_eos_token": ends,
    })  # fmt: skip
    if pair is None:
        with pytest.raises(TokenizerError, match="the file has no separator of two texts"):
            bridge.encode_pair("a", "b")
    else:
        assert bridge.encode_pair("a", "b") == pair


def test_positions_without_a_row_are_refused_at_load(cases):
    with pytest.raises(ConfigError, match="context_size: found 129, wanted at most 128, as far as"):
        oxillama.load(cases / "embed" / "bert_cls" / "f32.gguf", context_size=129)
