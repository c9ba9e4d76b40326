"""What came from a file is trusted as far as it can be proven: a forged snapshot changes nothing
but what its own session says.
"""

import os

import numpy as np
import pytest
from blake3 import blake3

import oxillama
from oxillama import InferenceEngine, SamplerConfig
from oxillama.errors import ConfigError, SnapshotIncompatible
from oxillama.snapshot.container import Envelope
from oxillama.snapshot.key import authenticate, key_path
from oxillama.snapshot.session import KIND
from tests.snapshot.saved import remade

GREEDY = SamplerConfig.greedy()
PROMPT = [(5 * i + 1) % 80 for i in range(50)]


def negated(facts, sections):
    """Every key and value of the pages with the other sign."""
    sections["kv"] = (np.frombuffer(sections["kv"], "<u2") ^ 0x8000).tobytes()


@pytest.fixture(scope="module")
def forged(model):
    """(a forged snapshot of a session over PROMPT, the honest one, the tokens that follow,
    greedily).
    """
    with oxillama.load(model, num_threads=1) as engine:
        tokens = engine.generate(PROMPT, max_tokens=20, sampler=GREEDY).tokens
        session = engine.session()
        engine.generate(PROMPT, session=session, max_tokens=4, sampler=GREEDY)
        data = session.snapshot()
        yield remade(data, negated), data, tokens


def follows(engine, prompt=PROMPT):
    done = engine.generate(prompt, max_tokens=20, sampler=GREEDY)
    return done.tokens, done.usage.cached_tokens


@pytest.mark.parametrize("use", ["kept", "continued", "closed", "forked", "truncated"])
def test_pages_of_a_forged_snapshot_serve_no_other_request(model, forged, use):
    """Invariant 6, whatever the restored session does before the others come."""
    data, _, tokens = forged
    with oxillama.load(model, num_threads=1) as engine:
        session = engine.restore(data)
        if use == "continued":
            engine.generate(None, session=session, max_tokens=20)
        if use == "forked":
            fork = session.fork()
            engine.generate([3, 4], session=fork, max_tokens=5)
        if use == "truncated":
            session.truncate(40)
            engine.generate(PROMPT[40:], session=session, max_tokens=5)
        if use == "closed":
            session.close()
        assert follows(engine) == (tokens, 0)
        # and those of honest requests go on to serve others
        assert follows(engine) == (tokens, len(PROMPT) - 1)
        assert engine.metrics().pages_leaked == 0


def test_an_engine_that_was_resumed_from_a_forged_snapshot_answers_others_rightly(model, forged):
    data, _, tokens = forged
    with InferenceEngine.resume(data, model, num_threads=1) as engine:
        engine.generate(None, max_tokens=3)
        assert follows(engine) == (tokens, 0)


def test_pages_of_a_restored_session_are_not_among_those_that_are_stored_in_a_file(
    model, forged, tmp_path
):
    with oxillama.load(model, num_threads=1) as engine:
        engine.generate(None, session=engine.restore(forged[0]), max_tokens=20)
        assert engine.save_prefixes(tmp_path / "prefixes") == 0


def test_a_restored_session_goes_on_over_its_own_pages(model, forged):
    with oxillama.load(model, num_threads=1) as engine:
        session = engine.restore(forged[1])
        length = session.kv.length
        done = engine.generate(None, session=session, max_tokens=16)
        assert length >= len(PROMPT) and done.tokens == forged[2][4:]


# ---- stored prefixes, which serve every request


def test_a_signature_is_of_all_names_and_hashes_in_any_order():
    digests = {"facts": bytes(range(32)), "kv": bytes(32)}
    made = authenticate(bytes(32), digests)
    whole = b"".join(name.encode() + bytes(16 - len(name)) + digests[name] for name in digests)
    assert made == blake3(whole, key=bytes(32)).digest()
    assert made == authenticate(bytes(32), dict(reversed(digests.items())))


@pytest.fixture
def own_key(tmp_path, monkeypatch):
    """The place of a key file that is not there yet."""
    path = tmp_path / "config" / "oxillama" / "key"
    monkeypatch.delenv("OXILLAMA_KEY_FILE")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    assert key_path() == path
    return path


def stored(model, path):
    """A file of the prefixes that an honest engine stored; returns the tokens that follow."""
    with oxillama.load(model, num_threads=1) as engine:
        tokens = follows(engine)[0]
        assert engine.save_prefixes(path) == 1
    return tokens


@pytest.mark.parametrize("mac", ["kept", "none", "of another key", "of the forged sections"])
def test_forged_prefixes_are_refused_and_serve_nobody(model, own_key, tmp_path, mac):
    path = tmp_path / "prefixes"
    tokens = stored(model, path)

    def forge(facts, sections):
        negated(facts, sections)
        if mac == "none":
            del sections["mac"]

    data = remade(path.read_bytes(), forge)
    if mac.startswith("of"):
        with Envelope.open(KIND, data) as saved:
            digests = {name: each.digest for name, each in saved.sections.items() if name != "mac"}
        code = (
            authenticate(bytes(32), digests)
            if mac == "of another key"
            else blake3(b"".join(digests.values())).digest()
        )
        data = remade(data, lambda facts, sections: sections.update(mac=code))
    path.write_bytes(data)
    with oxillama.load(model, num_threads=1) as engine:
        with pytest.raises(SnapshotIncompatible, match="^mac: "):
            engine.load_prefixes(path)
        assert follows(engine) == (tokens, 0) and engine.metrics().pages_leaked == 0


def test_prefixes_of_another_user_are_taken_where_the_caller_vouches_for_them(
    model, own_key, tmp_path, monkeypatch
):
    path = tmp_path / "prefixes"
    tokens = stored(model, path)
    monkeypatch.setenv("OXILLAMA_KEY_FILE", str(tmp_path / "another"))
    with oxillama.load(model, num_threads=1) as engine:
        with pytest.raises(SnapshotIncompatible, match="^mac: found no key of this user"):
            engine.load_prefixes(path)
        assert engine.load_prefixes(path, trust=True) == 1
        assert follows(engine) == (tokens, len(PROMPT) - 1)


def test_the_key_is_made_when_prefixes_are_saved_and_is_its_owners_alone(model, own_key, tmp_path):
    with oxillama.load(model, num_threads=1) as engine:
        with pytest.raises(OSError):
            engine.load_prefixes(tmp_path / "none")
        assert not own_key.exists()
        engine.save_prefixes(tmp_path / "a")
        key = own_key.read_bytes()
        assert len(key) == 32
        if hasattr(os, "getuid"):
            assert own_key.stat().st_mode & 0o777 == 0o600
        engine.save_prefixes(tmp_path / "b")
        assert own_key.read_bytes() == key and engine.load_prefixes(tmp_path / "a") == 0


@pytest.mark.parametrize(
    "change, wanted",
    [
        pytest.param(
            lambda path: path.chmod(0o644),
            "has mode 644 and owner",
            marks=pytest.mark.skipif(not hasattr(os, "getuid"), reason="files have no mode here"),
        ),
        (lambda path: path.write_bytes(b"short"), "holds 5 bytes"),
        (lambda path: path.write_bytes(bytes(33)), "holds 33 bytes"),
    ],
)
def test_a_key_that_others_may_know_is_refused(model, own_key, tmp_path, change, wanted):
    stored(model, tmp_path / "prefixes")
    change(own_key)
    with (
        oxillama.load(model, num_threads=1) as engine,
        pytest.raises(ConfigError, match=wanted),
    ):
        engine.load_prefixes(tmp_path / "prefixes")


def test_prefixes_are_saved_without_a_key_where_none_can_be_kept(model, own_key, tmp_path):
    (tmp_path / "config").write_text("no folder")
    stored(model, tmp_path / "prefixes")
    with oxillama.load(model, num_threads=1) as engine:
        with pytest.raises(SnapshotIncompatible, match="^mac: found no section mac"):
            engine.load_prefixes(tmp_path / "prefixes")
        assert engine.load_prefixes(tmp_path / "prefixes", trust=True) == 1
