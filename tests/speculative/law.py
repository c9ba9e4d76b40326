"""Tiny models with a vocabulary whose next token is known, random requests to them, and the law
that no draft changes a text.
"""

import numpy as np

import oxillama
from oxillama.gguf import GgufWriter
from oxillama.speculative import shortlist
from oxillama.speculative.types import Candidates
from tests.model.invented import HIDDEN, VOCAB, invent

# the token after each one, in models that are made so
NEXT = np.random.default_rng(1).permutation(HIDDEN)
PIECES = ["<unk>", "<s>", "</s>", "▁", *'0123456789{}[]",:.-', *"abcdefghijklmnopqrstuvwxyz"]
PIECES += [f"▁{one}" for one in "abcdefghijklmnopqrstuvwxyz"][: VOCAB - len(PIECES)]
PIECES += [chr(0x4E00 + at) for at in range(VOCAB - len(PIECES))]
WORDS = {
    "tokenizer.ggml.model": "llama",
    "tokenizer.ggml.tokens": PIECES,
    "tokenizer.ggml.scores": np.zeros(VOCAB, np.float32),
    "tokenizer.ggml.token_type": np.array([2, 3, 3] + [1] * (VOCAB - 3), np.int32),
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
    "tokenizer.ggml.add_bos_token": False,
}
AXES = np.eye(HIDDEN, dtype=np.float32)
# row b of it is the axis of the token that b follows
STEP = AXES[np.argsort(NEXT)]
GREEDY = oxillama.SamplerConfig.greedy()
SEEDED = oxillama.SamplerConfig(temperature=0.9, top_p=0.95, repetition_penalty=1.1)


def written(path, arch, changed=lambda name, values: values, *, further=0, more=None):
    """The tiny model of `arch` with a vocabulary, changed tensors and more tensors; further: layers
    that predict further tokens.
    """
    reader = invent(path.with_suffix(".first"), arch, further=further)
    with GgufWriter(path, arch) as writer:
        for key, value in {**reader.metadata, **WORDS}.items():
            if key not in ("general.architecture", "general.alignment"):
                writer.add(key, value)
        for name, info in reader.tensors.items():
            kind = np.int32 if info.type_name == "I32" else np.float32
            values = np.frombuffer(bytes(reader.data(name)), kind).reshape(info.shape)
            writer.add_tensor(name, changed(name, values))
        for name, values in (more or {}).items():
            writer.add_tensor(name, values)
    return path


def target_of(path, *, share=0.0):
    """A model whose next token is `NEXT` of the last one, but for `share` of what its layers add.
    Tokens are the axes of rows.
    """

    def changed(name, values):
        if name == "token_embd.weight":
            return np.concatenate([AXES, 0 * AXES[: VOCAB - HIDDEN]])
        adds = "attn_output" in name or "ffn_down" in name
        return values * np.float32(share) if adds else values

    head = np.concatenate([STEP, 0 * AXES[: VOCAB - HIDDEN]])
    return written(path, "llama", changed, more={"output.weight": head})


def prompt_of(rng):
    """A prompt of tokens, at random."""
    return rng.integers(3, HIDDEN, int(rng.integers(1, 50))).tolist()


def options_of(rng):
    """Options of a request, at random."""
    sampler = [GREEDY, SEEDED, SEEDED.replace(temperature=1.5, presence_penalty=0.4)]
    options = dict(
        max_tokens=int(rng.integers(1, 50)),
        sampler=sampler[int(rng.integers(3))],
        seed=int(rng.integers(100)),
        logprobs=3,
    )
    if rng.random() < 0.3:
        options["regex"] = r"[a-m ]{3,20}[0-9]{2}"
    return options


def forced(engine, path, most=16):
    """Candidates of the draft alone, as many as fit, whatever they cost."""
    drafter = engine.loaded.core.speculator.registry.resolve(path).drafter
    return Candidates(drafter, most=most, adaptive=False)


def ways(engine, draft):
    """What may draft for a request: the draft, whatever it costs or as it pays, or nothing."""
    return (forced(engine, draft), forced(engine, draft, 2), draft, "auto", None)


def knows_the_next_token(engine, candidates, most):
    """Every candidate is accepted: also after a prompt of one token, in a session that goes on, and
    behind cached tokens.
    """
    session = engine.session()
    for count in (1, 2, 40):
        prompt = np.random.default_rng(count).integers(0, HIDDEN, count).tolist()
        for options in ({}, {"cache_prompt": False}, {"session": session}):
            done = engine.generate(
                prompt, max_tokens=30, sampler=GREEDY, speculative=candidates, **options
            )
            assert done.tokens[0] == NEXT[prompt[-1]]
            assert done.tokens[1:] == tuple(NEXT[list(done.tokens[:-1])])
            stats = done.speculation
            assert stats.rejected == 0 and stats.accepted >= 29 * most // (most + 1) - most


def texts_are_equal(plain, engine, ways):
    """The text, log-probabilities and end of random requests, whatever drafts for them."""
    rng = np.random.default_rng(4)
    accepted = rejected = 0
    for _ in range(8):
        prompt, options = prompt_of(rng), options_of(rng)
        wanted = plain.generate(prompt, speculative=False, **options)
        for way in ways:
            done = engine.generate(prompt, speculative=way, **options)
            assert (done.tokens, done.logprobs) == (wanted.tokens, wanted.logprobs)
            assert done.finish_reason == wanted.finish_reason
            if done.speculation is not None:
                accepted += done.speculation.accepted
                rejected += done.speculation.rejected
    assert accepted > 100 and rejected > 100


def texts_side_by_side_are_equal(plain, engine, ways):
    """Several requests at once, and several completions of one."""
    rng = np.random.default_rng(5)
    asked = [(prompt_of(rng), options_of(rng)) for _ in range(5)]
    wanted = [plain.generate(prompt, speculative=False, **more) for prompt, more in asked]
    options = dict(n=2, max_tokens=30, sampler=SEEDED, seed=3)
    found = plain.generate([5, 6, 7], speculative=False, **options)
    several = [done.tokens for done in found]
    for way in ways:
        requests = [engine.submit(prompt, speculative=way, **more) for prompt, more in asked]
        for running, done in zip(requests, wanted):
            found = running.result()
            assert (found.tokens, found.logprobs) == (done.tokens, done.logprobs)
        found = engine.generate([5, 6, 7], speculative=way, **options)
        assert [done.tokens for done in found] == several


def sessions_are_equal(plain, engine, ways, path, resumed=lambda engine, way: way):
    """Turns of a session, its fork and its snapshot; path: the model of the engine that resumes,
    and `resumed` what drafts there.
    """
    rng = np.random.default_rng(6)
    turns = [(prompt_of(rng)[:12], options_of(rng)) for _ in range(4)]

    def text(engine, way):
        session, out = engine.session(), []
        for prompt, options in turns:
            done = engine.generate(prompt, session=session, speculative=way, **options)
            out.append((done.tokens, done.logprobs))
        saved, other = session.snapshot(), session.fork()
        options = dict(max_tokens=9, sampler=SEEDED, seed=4, logprobs=2)
        for each in (other, session):
            done = engine.generate(None, session=each, speculative=way, **options)
            out.append((done.tokens, done.logprobs))
        with oxillama.InferenceEngine.resume(saved, path) as again:
            done = again.generate(None, speculative=resumed(again, way), **options)
            out.append((done.tokens, done.logprobs))
        return out

    wanted = text(plain, False)
    assert wanted[-1] == wanted[-2] == wanted[-3]
    for way in ways:
        assert text(engine, way) == wanted


def targets_of_any_kind_draft(target, draft):
    """The text of a target that is loaded with a draft, which has run and keeps no page."""
    rng = np.random.default_rng(7)
    with (
        oxillama.load(target, num_threads=1, speculative=draft) as engine,
        oxillama.load(target, num_threads=1) as plain,
    ):
        for _ in range(2):
            prompt, options = prompt_of(rng), options_of(rng)
            wanted = plain.generate(prompt, speculative=False, **options)
            for way in (forced(engine, draft, 3), None, "auto"):
                done = engine.generate(prompt, speculative=way, **options)
                assert (done.tokens, done.logprobs) == (wanted.tokens, wanted.logprobs)
        drafter = engine.loaded.core.speculator.registry.resolve(draft).drafter
        assert drafter.forwarded
        assert engine.metrics().pages_leaked == drafter.core.metrics().pages_leaked == 0


def outputs_are_drawn_from_by_regions(plain, target, draft, monkeypatch):
    """Of a draft that has a row for each token."""
    monkeypatch.setattr(shortlist, "REGION", 16)
    monkeypatch.setattr(shortlist, "MOST", 2)
    with oxillama.load(target, num_threads=1, speculative=draft) as engine:
        rng, way = np.random.default_rng(8), forced(engine, draft, 4)
        for _ in range(4):
            prompt, options = prompt_of(rng), options_of(rng)
            wanted = plain.generate(prompt, **options)
            done = engine.generate(prompt, speculative=way, **options)
            assert (done.tokens, done.logprobs) == (wanted.tokens, wanted.logprobs)
        assert way.drafter._shortlist.program.outputs == 32
