"""The public face of speculation, on real models: the text is the target's own, whatever drafts it;
and it can be saved and gone on with.
"""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import oxillama
from oxillama.speculative import SpeculativeConfig, SpeculativeEngine
from oxillama.speculative.drafts import choose_draft, requantised_draft
from oxillama.speculative.snapshot import SpecSnapshot

SEEDED = oxillama.SamplerConfig(temperature=0.9, top_p=0.95, repetition_penalty=1.1)
SCHEMA = {
    "type": "object",
    "properties": {
        "temperature_celsius": {"type": "integer"},
        "description": {"enum": ["warm", "cold"]},
    },
    "required": ["temperature_celsius", "description"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def stories(cases):
    return cases / "stories260K"


@pytest.fixture(scope="module")
def golden(stories):
    return json.loads((stories / "stories260K-golden.json").read_text("utf-8"))


@pytest.fixture(scope="module")
def target(stories):
    with oxillama.load(stories / "stories260K-f32.gguf") as engine:
        yield engine


@pytest.fixture(scope="module")
def draft(stories):
    with oxillama.load(stories / "stories260K-q8_0.gguf", num_threads=1) as engine:
        yield engine


def plain(engine, prompt, **options):
    """What the target says alone."""
    return engine.generate(prompt, cache_prompt=False, **options)


def test_a_draft_of_itself_at_q8_0_gives_the_golden_text(target, draft, golden):
    engine = SpeculativeEngine(SpeculativeConfig(target, draft, adaptive=False))
    done = engine.generate(
        [target.tokenizer.bos_id],
        max_tokens=len(golden["llama_cpp"]["f32"]["ids"]),
        sampler=oxillama.SamplerConfig.greedy(),
    )
    assert done.text == golden["expected_run_c"] and done.speculation.acceptance_rate > 0.9
    assert done.speculation.accepted > 100
    engine.close()


@pytest.mark.parametrize("asked", ["lookup", "auto", True, "draft"])
@pytest.mark.parametrize(
    "sampler", [oxillama.SamplerConfig.greedy(), SEEDED], ids=["greedy", "seeded"]
)
def test_the_text_is_the_targets_own_whatever_drafts_it(target, draft, asked, sampler):
    prompt = "Lily and Tom played. Lily and Tom"
    options = dict(max_tokens=120, sampler=sampler, seed=5, logprobs=3)
    done = target.generate(prompt, speculative=draft if asked == "draft" else asked, **options)
    wanted = plain(target, prompt, **options)
    assert done.tokens == wanted.tokens and done.text == wanted.text
    assert done.logprobs == wanted.logprobs  # the logits themselves, bit for bit
    assert done.speculation.total_output_tokens == 120 and wanted.speculation is None


@pytest.mark.parametrize("kv_type", ["f32", "q8_0", "q4_0"])
def test_candidates_are_written_over_in_pages_of_any_kind(kv_type):
    with (
        oxillama.load(kv_type=kv_type, num_threads=1) as engine,
        oxillama.load(num_threads=1) as draft,
    ):
        options = dict(
            max_tokens=60, sampler=SEEDED.replace(temperature=1.3), seed=6, cache_prompt=False
        )
        wanted = engine.generate("Once upon a time", **options)
        candidates = SpeculativeConfig(engine, draft, adaptive=False, draft_sampler=None)
        with SpeculativeEngine(candidates) as speculating:
            done = speculating.generate("Once upon a time", **options)
        assert done.tokens == wanted.tokens and done.speculation.accepted


def test_acceptance_of_the_target_as_its_own_draft_is_whole(target):
    for config in (
        SpeculativeConfig(target, target, adaptive=False),
        SpeculativeConfig(target, target, adaptive=False, draft_sampler=SEEDED),
    ):
        engine = SpeculativeEngine(config)
        stats = engine.generate(
            "Once upon a time", max_tokens=81, sampler=SEEDED, seed=8
        ).speculation
        assert stats.acceptance_rate == 1.0 and stats.accepted == 64 and stats.bonus_tokens == 16
        engine.close()


def test_a_grammar_holds_among_candidates_and_forced_tokens_change_nothing(target, draft):
    def run(**options):
        return target.generate(
            "The weather: ",
            max_tokens=120,
            sampler=SEEDED,
            seed=3,
            json_schema=SCHEMA,
            cache_prompt=False,
            **options,
        )

    # a report of every draw: nothing is taken without one
    wanted = run(logprobs=0, speculative=False)
    assert wanted.speculation is None
    assert json.loads(wanted.text)["description"] in ("warm", "cold")
    for options in (
        {},
        dict(speculative=False),
        dict(speculative="auto"),
        dict(speculative="lookup"),
        dict(speculative=draft),
        dict(speculative="auto", logprobs=0),
    ):
        done = run(**options)
        assert (done.text, done.tokens) == (wanted.text, wanted.tokens)


def test_forced_tokens_are_run_together(cases):
    """In a vocabulary with one token for each byte; where bytes have two, which of them is a draw
    like any other.
    """
    with oxillama.load(cases / "arch" / "qwen3" / "f32.gguf") as engine:
        options = dict(
            max_tokens=120,
            sampler=SEEDED,
            seed=3,
            regex="[ab]\\x01\\x02\\x01\\x02\\x01\\x02\\x01\\x02[0-9]",
            cache_prompt=False,
        )
        before = engine.metrics().steps_total
        done = engine.generate([1, 2, 3], **options)
        steps = engine.metrics().steps_total - before
        assert done.text[1:-1] == "\x01\x02" * 4 and len(done.tokens) == 10 and steps <= 3
        assert engine.generate([1, 2, 3], logprobs=0, **options).tokens == done.tokens


def test_stop_strings_among_candidates_stop_where_they_would(target):
    for stop in ("Lily", "wanted to", ". S", "red ball"):
        options = dict(max_tokens=150, sampler=oxillama.SamplerConfig.greedy(), stop=stop)
        done, wanted = (
            target.generate("Once upon a time", speculative=target, **options),
            plain(target, "Once upon a time", **options),
        )
        assert (done.text, done.tokens, done.finish_reason) == (
            wanted.text,
            wanted.tokens,
            wanted.finish_reason,
        )
        assert stop not in done.text


def test_a_stream_gives_the_same_pieces_in_sum(target, draft):
    engine = SpeculativeEngine(SpeculativeConfig(target, draft, num_speculative=6, seed=4))
    text = "".join(piece.text for piece in engine.stream("Once", max_tokens=60, sampler=SEEDED))
    assert text == plain(target, "Once", max_tokens=60, sampler=SEEDED, seed=4).text
    assert engine.stats.total_output_tokens == 60
    engine.close()


@pytest.mark.parametrize("options", [{"n": 2}, {"best_of": 3}])
@pytest.mark.parametrize("door", ["submit", "generate", "stream"])
def test_several_completions_beside_a_draft_are_refused_and_the_next_one_runs(
    target, draft, door, options
):
    engine = SpeculativeEngine(SpeculativeConfig(target, draft))
    with pytest.raises(
        oxillama.ConfigError, match="n, best_of: found [23] completions and a draft, wanted 1"
    ):
        getattr(engine, door)("Once", max_tokens=5, **options)
    assert (
        engine.generate("Once", max_tokens=5, seed=3, n=1).tokens
        == plain(target, "Once", max_tokens=5, seed=3).tokens
    )
    engine.close()


@pytest.mark.parametrize("draft_sampler", [None, SEEDED], ids=["found", "drawn"])
def test_a_saved_session_goes_on_as_if_nothing_had_been(
    target, draft, stories, tmp_path, draft_sampler
):
    def engine():
        return SpeculativeEngine(
            SpeculativeConfig(target, draft, seed=12, draft_sampler=draft_sampler)
        )

    with engine() as whole:
        first = whole.generate("Once upon", max_tokens=40, sampler=SEEDED)
        saved = whole.snapshot()
        assert saved == whole.snapshot()
        whole.snapshot_to_file(tmp_path / "spec")
        rest = whole.generate(None, max_tokens=60)
    for source in (saved, tmp_path / "spec"):
        resume = SpeculativeEngine.resume if source is saved else SpeculativeEngine.resume_from_file
        with resume(
            source, stories / "stories260K-f32.gguf", stories / "stories260K-q8_0.gguf"
        ) as again:
            assert again.snapshot() == saved
            went_on = again.generate(None, max_tokens=60)
            assert went_on.tokens == rest.tokens
            if draft_sampler is not None:  # else the clock says how many candidates pay
                assert went_on.speculation.accepted == rest.speculation.accepted
    if draft_sampler is None:
        assert (*first.tokens, *rest.tokens) == plain(
            target, "Once upon", max_tokens=100, sampler=SEEDED, seed=12
        ).tokens


@pytest.mark.parametrize("background", [False, True])
def test_a_resumed_engine_speculates_as_the_saved_one_did(target, draft, background):
    config = SpeculativeConfig(
        target, draft, num_speculative=2, seed=7, draft_sampler=SEEDED, adaptive=False
    )
    changes = {"num_speculative": 3, "seed": 8, "adaptive": True}
    for own in (SEEDED, None):
        config = replace(config, draft_sampler=own)
        with SpeculativeEngine(config, background=background) as engine:
            engine.generate("Once upon a time", max_tokens=6)
            saved = engine.snapshot()
        with SpeculativeEngine.resume(saved, target, draft) as again:
            assert again.config == config and (again.background is not None) == background
        for name, value in changes.items():
            if own is None:
                with SpeculativeEngine.resume(saved, target, draft, **{name: value}) as again:
                    assert again.config == replace(config, **{name: value})
            else:  # each would be another text
                with pytest.raises(
                    oxillama.ConfigError, match=f"{name}: the text depends on it where"
                ):
                    SpeculativeEngine.resume(saved, target, draft, **{name: value})
        with pytest.raises(oxillama.ConfigError, match="most: is not a field of Speculative"):
            SpeculativeEngine.resume(saved, target, draft, most=3)


def ended(engine, end, at):
    """Generate with an engine until a request ends in one of the ways it can."""
    prompt, options = "Once upon a time", dict(sampler=SEEDED, max_tokens=200)
    if end == "stop":
        done = engine.generate(prompt, stop=[" the"], **options)
        assert done.finish_reason == "stop"
    elif end == "token":  # the session keeps the logits that it was drawn from
        often = sorted(set(engine.generate(prompt, **options).tokens[9 + at : 13 + at]))
        done = engine.generate(prompt, stop_token_ids=often, **options)
        assert done.finish_reason == "stop"
    elif end == "length":
        assert engine.generate(prompt, **{**options, "max_tokens": 18 + at}).finish_reason == end
    elif end == "grammar":
        done = engine.generate(prompt, regex=f"( [a-z]{{1,6}}){{{3 + at}}}", **options)
        assert done.finish_reason == "stop"
    elif end == "cancelled":
        request = engine.submit(prompt, stop_token_ids=(), **{**options, "max_tokens": 400})
        for count, _ in enumerate(request):
            if count > 5 + at:
                break
        request.cancel()
        assert request.result().finish_reason == end
    else:
        propose = engine.drafter.propose

        def failing(asks):
            drafts = propose(asks)
            if len(asks[0].session.tokens) > 20 + at:
                raise ZeroDivisionError("of the draft")
            return drafts

        engine.drafter.propose = failing
        with pytest.raises(ZeroDivisionError):
            for _ in range(99):  # while the draft rests it does not fail
                engine.generate(prompt, **options)
        del engine.drafter.propose


@pytest.mark.parametrize("end", ["stop", "token", "length", "grammar", "cancelled", "error"])
@pytest.mark.parametrize("draft_sampler", [None, SEEDED], ids=["found", "drawn"])
@pytest.mark.parametrize("adaptive", [False, True], ids=["always", "adaptive"])
def test_a_snapshot_after_any_end_goes_on_as_the_session_that_stayed(
    target, draft, end, draft_sampler, adaptive
):
    for at in range(4):
        config = SpeculativeConfig(
            target, draft, seed=at, draft_sampler=draft_sampler, adaptive=adaptive
        )
        with SpeculativeEngine(config) as engine:
            ended(engine, end, at)
            saved = engine.snapshot()
            more = dict(max_tokens=30, stop=[], stop_token_ids=[], regex=None)
            if end != "grammar":
                del more["regex"]
            stayed = engine.generate(None, **more)
        snapshot = SpecSnapshot.decode(saved)
        with SpeculativeEngine.resume(saved, target, draft) as again:
            following = again.drafter.kept(target._last())
            assert following.held == target._last().tokens[: snapshot.held]
            assert again.generate(None, **more).tokens == stayed.tokens
        assert draft.metrics().pages_leaked == 0


def test_rejected_candidates_in_a_snapshot_of_an_earlier_version_are_cut_off(target, draft):
    with SpeculativeEngine(SpeculativeConfig(target, draft, seed=3, adaptive=False)) as engine:
        engine.generate("Once upon a time", max_tokens=30, sampler=SEEDED)
        session, following = target._last(), engine.drafter.kept(target._last())
        # as those versions saved it: what the draft has evaluated, whatever became of it
        drafted = draft.session()
        drafted.extend([*session.tokens[:20], 3, 5, 7])
        draft.prefill([9], session=drafted)
        saved = SpecSnapshot(
            target=target.snapshot(),
            draft=drafted.snapshot(),
            held=24,
            memory=following.to_dict(),
            settings={"adaptive": False, "draft_sampler": None},
        ).encode()
        stayed = engine.generate(None, max_tokens=30)
    with SpeculativeEngine.resume(saved, target, draft) as again:
        assert again.drafter.kept(target._last()).held == target._last().tokens[:20]
        assert again.generate(None, max_tokens=30).tokens == stayed.tokens


@pytest.mark.parametrize("busy", [False, True])
def test_what_is_refused_leaves_the_draft_where_it_stood(target, draft, busy):
    with SpeculativeEngine(SpeculativeConfig(target, draft, draft_sampler=SEEDED)) as engine:
        session = target.session()
        engine.generate("Once upon a time", session=session, max_tokens=10, seed=3)
        stood = engine.drafter.kept(session)
        session.busy = busy  # as while a request runs on it
        with pytest.raises(oxillama.OxillamaError):
            engine.submit(
                None, session=session, **({} if busy else {"context_shift": True, "keep": 10**6})
            )
        session.busy = False
        assert stood is not None and engine.drafter.kept(session) is stood


def test_neither_models_file_is_written_over_by_a_snapshot(cases, tmp_path):
    paths = [tmp_path / "target.gguf", tmp_path / "draft.gguf"]
    for path, kind in zip(paths, ("f32", "q8_0")):
        path.write_bytes((cases / "stories260K" / f"stories260K-{kind}.gguf").read_bytes())
    before = [path.read_bytes() for path in paths]
    with SpeculativeEngine(SpeculativeConfig(*paths)) as engine:
        engine.generate("Once", max_tokens=3)
        for path in paths:
            with pytest.raises(
                oxillama.ConfigError, match="snapshot_to_file: .* is the model itself"
            ):
                engine.snapshot_to_file(path)
    # the same where a request names the draft
    with oxillama.load(paths[0]) as engine:
        engine.generate("Once", max_tokens=3, speculative=str(paths[1]))
        for path, write in (
            (paths[1], engine.snapshot_to_file),
            (paths[1], engine.save_prefixes),
            (paths[0], engine.snapshot_to_file),
        ):
            with pytest.raises(oxillama.ConfigError, match="is the model itself"):
                write(path)
    assert [path.read_bytes() for path in paths] == before


def test_a_saved_session_is_refused_when_a_byte_is_another(target, draft):
    with SpeculativeEngine(SpeculativeConfig(target, draft)) as engine:
        engine.generate("Once", max_tokens=5)
        saved = engine.snapshot()
    snapshot = SpecSnapshot.decode(saved)
    assert (
        snapshot.encode() == saved
        and len(snapshot.fingerprint) == 64
        and snapshot.num_speculative == 4
    )
    rng = np.random.default_rng(1)
    for at in [*range(200), *rng.integers(200, len(saved), 100).tolist()]:
        broken = bytearray(saved)
        broken[at] ^= 1 << int(rng.integers(8))
        with pytest.raises(oxillama.SpecSnapshotIncompatible):
            SpecSnapshot.decode(bytes(broken))
    for length in rng.integers(0, len(saved), 50).tolist():
        with pytest.raises(oxillama.SpecSnapshotIncompatible):
            SpecSnapshot.decode(saved[:length])


def test_a_draft_is_chosen_from_a_folder_or_made(target, stories, tmp_path):
    assert choose_draft(target._loaded.model, stories) == stories / "stories260K-q8_0.gguf"
    made = requantised_draft(target._loaded.model, tmp_path)
    assert (
        made.parent == tmp_path
        and made.stat().st_size < (stories / "stories260K-f32.gguf").stat().st_size / 2
    )
    done = target.generate(
        "Once upon a time",
        max_tokens=60,
        speculative=stories,
        sampler=oxillama.SamplerConfig.greedy(),
    )
    assert (
        done.tokens
        == plain(
            target, "Once upon a time", max_tokens=60, sampler=oxillama.SamplerConfig.greedy()
        ).tokens
    )
    with pytest.raises(
        oxillama.ConfigError, match="holds no GGUF file with the target's vocabulary"
    ):
        choose_draft(target._loaded.model, tmp_path.parent / "nowhere")


@pytest.mark.parametrize(
    "sampler", [oxillama.SamplerConfig.greedy(), SEEDED], ids=["greedy", "seeded"]
)
def test_the_targets_own_first_layers_draft_for_it(target, sampler):
    options = dict(max_tokens=100, sampler=sampler, seed=5)
    wanted, stood = plain(target, "Once upon a time", **options).tokens, []
    for depth in range(1, 6):
        with SpeculativeEngine(
            SpeculativeConfig(target, f"early_exit:{depth}", adaptive=False)
        ) as engine:
            done = engine.generate("Once upon a time", cache_prompt=False, **options)
            stood.append(done.speculation.acceptance_rate)
            assert done.tokens == wanted
    # of all five layers it is the target itself
    assert stood[0] < stood[3] < stood[4] == 1
    done = target.generate("Once upon a time", speculative="early_exit", **options)
    assert done.tokens == wanted and done.speculation.total_output_tokens == 100
    for asked in (
        "early_exit:0",
        "early_exit:6",
        "early_exit:",
        "early_exit:x",
        "early_exit:" + "9" * 5000,
    ):
        with pytest.raises(oxillama.ConfigError, match="wanted early_exit:n with n from 1 to 5"):
            target.generate("Once", speculative=asked)


def test_a_session_drafted_by_first_layers_is_saved_and_goes_on(target):
    with SpeculativeEngine(
        SpeculativeConfig(target, "early_exit:3", seed=12, draft_sampler=SEEDED)
    ) as whole:
        whole.generate("Once upon", max_tokens=30, sampler=SEEDED)
        saved = whole.snapshot()
        rest = whole.generate(None, max_tokens=40)
    with SpeculativeEngine.resume(saved, target, "early_exit:3") as again:
        assert again.generate(None, max_tokens=40).tokens == rest.tokens


def test_a_draft_that_was_made_goes_with_its_engine_or_with_the_interpreter(stories, tmp_path):
    """A process with a temporary folder of its own: the file stands while the engine is open, and
    whatever is left open goes at the end.
    """
    code = f"""
import os, tempfile
import oxillama
from oxillama.speculative.drafts import requantised_draft
from oxillama.speculative import SpeculativeConfig, SpeculativeEngine
config = SpeculativeConfig({str(stories / "stories260K-f32.gguf")!r}, "requantised")
greedy = oxillama.SamplerConfig.greedy()
with SpeculativeEngine(config) as engine:
    assert len(os.listdir(tempfile.gettempdir())) == 1
    wanted = engine.target.generate("Once upon a time", max_tokens=20, sampler=greedy).tokens
    assert engine.generate("Once upon a time", max_tokens=20, sampler=greedy).tokens == wanted
    saved = engine.snapshot()
assert os.listdir(tempfile.gettempdir()) == []
left = SpeculativeEngine.resume(saved, config.target, "requantised")
made = requantised_draft(left.target._loaded.model)
assert made.exists() and len(os.listdir(tempfile.gettempdir())) == 2
"""
    subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        timeout=60,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        cwd=Path(__file__).parents[1],
    )
    assert not list(tmp_path.iterdir())


def test_what_cannot_draft_is_refused_by_name(target, cases):
    other = next(path for path in sorted((cases / "arch").glob("qwen*/f32.gguf")))
    with pytest.raises(oxillama.ConfigError, match="lacks .* of the target's"):
        target.generate("Once", max_tokens=4, speculative=other)
    for asked, words in (
        (7, "speculative: found 7"),
        ("no such file", "speculative: found 'no such file'"),
        ("", "speculative: found ''"),
    ):
        with pytest.raises(oxillama.ConfigError, match=words):
            target.generate("Once", max_tokens=4, speculative=asked)
    with pytest.raises(oxillama.ConfigError, match="num_speculative: found 0"):
        SpeculativeConfig(target, target, num_speculative=0)
