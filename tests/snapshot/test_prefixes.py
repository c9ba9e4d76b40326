"""Stored prefixes in a file: an engine that starts from it finds them, and its tokens are the
same.
"""

import os

import pytest

import oxillama
from oxillama import InferenceEngine, SamplerConfig
from oxillama.errors import ConfigError, ModelFingerprintMismatch, SnapshotIncompatible
from tests.snapshot.saved import at, parts, remade, state_of

SEEDED = SamplerConfig(temperature=1.0, seed=5)
COMMON = [(7 * i + 3) % 80 for i in range(37)]
PROMPTS = [COMMON + [1] * 5, COMMON + [2] * 30, COMMON[:20] + [3] * 9, [9] * 40, COMMON]


@pytest.fixture(scope="module")
def filled(model, tmp_path_factory):
    """(an engine that has evaluated the prompts, its completions, the file of its prefixes)."""
    file = tmp_path_factory.mktemp("spilt") / "prefixes"
    with oxillama.load(model, num_threads=1) as engine:
        done = [engine.generate(prompt, max_tokens=3, sampler=SEEDED).tokens for prompt in PROMPTS]
        assert engine.save_prefixes(file) == engine._loaded.core.prefix.entries == 5
        yield engine, done, file


def listed(engine) -> dict:
    return {tokens: len(pages) for _, tokens, pages in engine._loaded.core.prefix.sequences()}


def test_an_engine_starts_where_another_stood(model, filled):
    engine, done, file = filled
    with oxillama.load(model, num_threads=1) as other:
        assert other.load_prefixes(file) == 5 and listed(other) == listed(engine)
        assert (
            other._loaded.core.prefix.pages_used
            == engine._loaded.core.prefix.pages_used
            == other._loaded.core.pool.pages_used
        )
        assert list(listed(other)) == list(listed(engine))  # in the order of their last use
        again = [other.generate(prompt, max_tokens=3, sampler=SEEDED) for prompt in PROMPTS]
        assert [each.tokens for each in again] == done and all(
            each.usage.cached_tokens == len(prompt) - 1 for each, prompt in zip(again, PROMPTS)
        )
        assert other.metrics().pages_leaked == 0


def test_pages_that_were_saved_or_loaded_belong_to_the_cache_alone(model, tmp_path):
    path = tmp_path / "prefixes"
    with oxillama.load(model, num_threads=1) as engine, oxillama.load(model) as other:
        engine.generate(COMMON, max_tokens=3, sampler=SEEDED)
        assert engine.save_prefixes(path) == other.load_prefixes(path) == 1
        assert other.load_prefixes(path) == 1
        for each in (engine, other):
            each.reset()
            assert each._loaded.core.pool.pages_used == 3
            each._loaded.core.clear_cache()
            assert each._loaded.core.pool.pages_used == 0


def test_equal_caches_make_equal_files_and_what_was_there_stays(model, filled, tmp_path):
    engine, _, file = filled
    engine.save_prefixes(tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == file.read_bytes()
    with oxillama.load(model, num_threads=1) as other:
        other.load_prefixes(file)
        other.save_prefixes(tmp_path / "other")
        assert (tmp_path / "other").read_bytes() == file.read_bytes()
        other.load_prefixes(file)
        assert listed(other) == listed(engine) and other.metrics().pages_leaked == 0


def test_what_finds_no_room_is_left_out_the_least_recently_used_first(model, filled):
    engine, _, file = filled
    order = [tokens for _, tokens, _ in engine._loaded.core.prefix.sequences()]
    with oxillama.load(model, max_pages=7, num_threads=1) as tight:
        stored = tight.load_prefixes(file)
        assert (
            0 < stored < 5
            and set(listed(tight)) == set(order[-stored:])
            and tight.metrics().pages_leaked == 0
        )
    with oxillama.load(model, prefix_max_entries=2, num_threads=1) as few:
        few.load_prefixes(file)
        assert list(listed(few)) == order[-2:] and few.metrics().pages_leaked == 0


def test_a_malformed_file_is_refused_and_changes_nothing(model, filled, tmp_path):
    engine, _, file = filled
    data, before = file.read_bytes(), state_of(engine)
    path = tmp_path / "broken"
    lies = [
        at("kind", value="session"),
        at("pages", value=2**63),
        at("sequences", value=4),
        at("sequences", value=-1),
        at("vocab", value=81),
        at("kv", "type", value="f32"),
        lambda facts, _: facts.pop("kv"),
        lambda _, sections: sections.pop("kv"),
        lambda _, sections: sections.update(tables=b"\xff" * len(sections["tables"])),
        lambda _, sections: sections.update(tokens=b""),
        lambda _, sections: sections.update(tokens=b"\x7f" * len(sections["tokens"])),
        lambda _, sections: sections.update(tokens=b"\xff" * len(sections["tokens"])),
        lambda _, sections: sections.update(tables=sections["tables"] + bytes(4)),
        at("kv", "shed", value=1),
        at("kv", "shed", value=-1),
    ]

    def empty(facts, sections):
        """One more prefix, of no tokens."""
        facts["sequences"] += 1
        sections["lengths"] += bytes(4)

    lies.append(empty)
    for broken in [
        *(remade(data, lie) for lie in lies),
        data[:-1],
        data[:200],
        b"",
        data[:-33] + bytes([data[-33] ^ 1]) + data[-32:],  # the last byte of the pages
    ]:
        path.write_bytes(broken)
        for trust in (False, True):  # whoever wrote it
            with pytest.raises(SnapshotIncompatible, match="^(?!mac)"):
                engine.load_prefixes(path, trust=trust)
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))  # the signature, which is last
    with pytest.raises(SnapshotIncompatible, match="^section mac: its BLAKE3 hash differs"):
        engine.load_prefixes(path)
    assert state_of(engine) == before
    facts, _ = parts(data)
    path.write_bytes(remade(data, at("model", "head", value="0" * 64)))
    with pytest.raises(ModelFingerprintMismatch):
        engine.load_prefixes(path)
    with pytest.raises(SnapshotIncompatible, match="kind 'prefix', wanted a session"):
        InferenceEngine.resume_from_file(file, model)
    with (
        oxillama.load(model, prefix_cache=False) as bare,
        pytest.raises(ConfigError, match="prefix cache: this engine has none"),
    ):
        bare.save_prefixes(path)


def test_a_model_file_that_was_changed_is_refused_and_no_share_of_a_page_stays_behind(
    model, tmp_path
):
    path = tmp_path / "changed.gguf"
    path.write_bytes(model.read_bytes())
    with oxillama.load(path, num_threads=1) as engine:
        engine.generate(COMMON, max_tokens=3, sampler=SEEDED)
        pool = engine._loaded.core.pool
        pages = [(page, pool.owners(page)) for page in engine._loaded.core.prefix.shares]
        os.utime(path, (1, 1))
        with pytest.raises(SnapshotIncompatible, match="was changed since it was loaded"):
            engine.save_prefixes(tmp_path / "prefixes")
        assert (
            pages
            and [(page, pool.owners(page)) for page, _ in pages] == pages
            and not (tmp_path / "prefixes").exists()
        )


def test_prefixes_in_coded_pages_of_another_panel_layout_are_refused(tmp_path):
    with oxillama.load(kv_type="q8_0", num_threads=1) as engine:
        engine.generate(list(range(40, 80)), max_tokens=3, sampler=SEEDED)
        engine.save_prefixes(tmp_path / "prefixes")
        data, before = (tmp_path / "prefixes").read_bytes(), state_of(engine)
        layout = parts(data)[0]["kv"]["layout"]
        (tmp_path / "prefixes").write_bytes(remade(data, at("kv", "layout", value=layout + 1)))
        with pytest.raises(
            SnapshotIncompatible,
            match=f"kv layout: the snapshot has {layout + 1}, this engine {layout}",
        ):
            engine.load_prefixes(tmp_path / "prefixes")
        assert state_of(engine) == before
