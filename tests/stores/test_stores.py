"""Where models lie: paths, folders, the hub, and what other programs have stored."""

import errno
import hashlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from urllib.parse import unquote, urlsplit

import pytest

import oxillama
from oxillama import SpeculativeConfig, SpeculativeEngine, stores
from oxillama.cli import main
from oxillama.errors import ConfigError, GgufError, GgufNotFound
from oxillama.stores import hub as hub_store
from oxillama.stores.hub import choose, fetch_encoder, matching_encoder

QUANTS = [f"m-{kind}.gguf" for kind in ("Q2_K", "Q4_K_M", "Q4_K_S", "Q8_0")]


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """A home of the test's own, with nothing in it."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("OLLAMA_MODELS", raising=False)
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """A hub of files by name: `owner/name` with what is put in it; what was fetched is listed."""
    import huggingface_hub

    class Hub:
        files: dict = {"owner/name": QUANTS}
        fetched: list = []

    kept = tmp_path / "hub"

    class Api:
        def model_info(self, repo):
            if repo not in Hub.files:
                raise OSError(f"404: {repo}")
            return SimpleNamespace(
                siblings=[SimpleNamespace(rfilename=name) for name in Hub.files[repo]]
            )

    def download(repo, name):
        Hub.fetched.append(name)
        path = kept / repo / name
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(oxillama.embedded_path(), path)
        return str(path)

    monkeypatch.setattr(Hub, "fetched", [])
    monkeypatch.setattr(Hub, "files", {"owner/name": QUANTS})
    monkeypatch.setattr(huggingface_hub, "HfApi", Api)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    monkeypatch.setattr(
        huggingface_hub, "snapshot_download", lambda repo, allow_patterns: Hub.files[repo, "at"]
    )
    return Hub


def ollama(home, name="fox", tag="latest", owner="library", layers=None):
    """A model as Ollama stores it; returns its file of weights."""
    data = oxillama.embedded_path().read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    blob = home / ".ollama/models/blobs" / f"sha256-{digest}"
    blob.parent.mkdir(parents=True, exist_ok=True)
    blob.write_bytes(data)
    kind = "application/vnd.ollama.image.model"
    manifest = home / ".ollama/models/manifests/registry.ollama.ai" / owner / name / tag
    manifest.parent.mkdir(parents=True, exist_ok=True)
    more = [{"mediaType": each, "digest": f"sha256:{digest}"} for each in layers or ()]
    weights = {"mediaType": kind, "digest": f"sha256:{digest}"}
    manifest.write_text(json.dumps({"layers": [weights, *more]}))
    return blob


def test_what_is_no_name_and_what_is_a_file_is_given_back(tmp_path):
    path = tmp_path / "m.gguf"
    path.write_bytes(b"x")
    for source in (b"bytes", ["a.gguf", "b.gguf"], str(path), "missing.gguf"):
        assert stores.located(source) == source
    with pytest.raises(GgufNotFound, match=r"nobody: no such file or folder.*OWNER/NAME\[:QUANT\]"):
        stores.located("nobody")
    for source in (b"bytes", str(path), "nobody"):
        with pytest.raises(ConfigError, match="file: found 'x'"):
            stores.located(source, file="x")


def test_a_name_that_no_file_can_have_is_that_of_no_model(home, capsys):
    long = ("Tell me a story. " * 20).strip()  # longer than a file's name may be
    with pytest.raises(GgufNotFound, match="no such file or folder, and Ollama has"):
        stores.located(long)
    assert main(["run", long]) == 1
    assert capsys.readouterr().err == (
        f"oxillama: {long}: no such file or folder; -p gives a prompt\n"
    )
    for option in ("--lora", "--mmproj", "--speculative"):
        assert main(["run", "-p", "a", option, "x" * 300]) == 1
        assert capsys.readouterr().err.count("\n") == 1


def test_what_may_not_be_looked_at_is_not_called_missing(home, tmp_path, monkeypatch, capsys):
    def stat(path, *arguments, **options):
        if "locked" in os.fspath(path):
            raise PermissionError(errno.EACCES, "Permission denied", os.fspath(path))
        return real(path, *arguments, **options)

    real = os.stat
    monkeypatch.setattr(os, "stat", stat)
    for name in ("locked/m.gguf", "locked/folder", "/locked"):
        with pytest.raises(GgufError, match=f"^{name}: cannot be read: Permission denied$"):
            stores.located(name)
    assert main(["info", "locked/m.gguf"]) == 1
    assert capsys.readouterr().err == "oxillama: locked/m.gguf: cannot be read: Permission denied\n"


def test_a_name_that_no_repository_can_have_is_not_removed(capsys):
    for name in ("/tmp", "a b/c"):
        assert main(["rm", name]) == 1
        assert f"rm: {name}: found no such model" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("https://huggingface.co/owner/some-GGUF", "owner/some-GGUF"),
        ("https://huggingface.co/owner/some-GGUF/tree/main", "owner/some-GGUF"),
        (
            "https://huggingface.co/owner/some/resolve/main/Q4/m.gguf?download=true",
            "owner/some:Q4/m.gguf",
        ),
        ("https://hf.co/owner/some/blob/main/m.gguf", "owner/some:m.gguf"),
        ("http://example.com/m.gguf", r"OWNER/NAME\[:FILE\]"),
    ],
)
def test_a_web_address_is_no_file_and_names_what_is_there(address, name, capsys):
    with pytest.raises(GgufNotFound, match=f"found a web address, wanted {name} of the Hugging"):
        stores.located(address)
    assert main(["pull", address]) == 1
    assert capsys.readouterr().err.startswith(f"oxillama: {address}: found a web address, wanted")


@pytest.mark.parametrize(
    ("address", "wanted"),
    [
        ("hf://owner/some/Q4/m.gguf", "wanted owner/some:Q4/m.gguf of the Hugging Face hub"),
        ("hf://owner/some@main/m.gguf", "wanted owner/some:m.gguf of the Hugging Face hub"),
        ("hf.co/owner/some/resolve/main/m.gguf", "wanted owner/some:m.gguf of the Hugging Face"),
        ("hf://owner/some/discussions", "wanted OWNER/NAME[:FILE] of the Hugging Face hub"),
        ("file:///models/a%20b.gguf", "wanted the path alone: /models/a b.gguf"),
        ("file:/models/m.gguf", "wanted the path alone: /models/m.gguf"),
    ],
)
def test_an_address_of_a_file_names_what_is_there(address, wanted):
    with pytest.raises(GgufNotFound, match=re.escape(f"{address}: found an address, {wanted}")):
        oxillama.load(address)


def test_a_tilde_is_the_home_folder(home):
    shutil.copy(oxillama.embedded_path(), home / "m.gguf")
    with oxillama.load("~/m.gguf", num_threads=1) as engine:
        assert engine.model_files == (home / "m.gguf",)
    with pytest.raises(GgufNotFound, match=f"^{home}/none.gguf: no such file"):
        oxillama.load("~/none.gguf")


def test_a_folder_with_one_model_is_that_model(tmp_path):
    place = tmp_path / "m"
    place.mkdir()
    with pytest.raises(GgufNotFound, match="without GGUF files and without a config.json"):
        oxillama.load(place)
    shutil.copy(oxillama.embedded_path(), place / "fox-Q8_0.gguf")
    (place / "mmproj-fox-f16.gguf").write_bytes(b"")
    with oxillama.load(place) as engine:
        assert engine.model_files == (place / "fox-Q8_0.gguf",)


def test_a_hugging_face_folder_is_converted_once(folder, tmp_path):
    first = stores.located(folder)
    assert first.parent == tmp_path / "cache/oxillama/converted" and first.is_file()
    stamp = first.stat().st_mtime_ns
    assert stores.located(str(folder)) == first and first.stat().st_mtime_ns == stamp
    with oxillama.load(folder) as engine:
        assert engine.model_files == (first,)
    assert stores.converted_files() == [first]
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(settings, indent=3))
    second = stores.located(folder)
    # what was made of the folder as it was is gone
    assert second != first and stores.converted_files() == [second]


def test_a_file_of_a_model_folder_is_taken_where_it_is_named(folder):
    path = folder / "m-Q8_0.gguf"
    shutil.copy(oxillama.embedded_path(), path)
    assert stores.located(folder, file="Q8_0") == path
    assert stores.located(folder) == stores.converted_files()[0]


def test_a_folder_is_converted_anew_by_another_converter_and_for_other_bytes(folder, monkeypatch):
    first = stores.converted_file(folder)
    config = folder / "config.json"
    status = config.stat()
    config.write_bytes(config.read_bytes())  # other bytes of one size could stand here
    os.utime(config, ns=(status.st_atime_ns, status.st_mtime_ns))
    second = stores.converted_file(folder)
    monkeypatch.setattr(stores.converted, "_converter", lambda: "another")
    third = stores.converted_file(folder)
    assert len({first, second, third}) == 3 and stores.converted_files() == [third]


def test_another_converter_is_one_of_other_sources(tmp_path, monkeypatch):
    source = tmp_path / "oxillama/gguf/writer.py"
    for path in (source, tmp_path / "oxillama/stores/converted.py"):
        path.parent.mkdir(parents=True)
        path.write_text("first")
    monkeypatch.setattr(stores.converted, "__file__", str(path))
    converter = stores.converted._converter.__wrapped__
    first = converter()
    path.write_text("other")
    assert converter() == first
    source.write_text("other")
    assert converter() != first


def test_a_converted_encoder_which_has_no_note_is_removed(tmp_path):
    path = tmp_path / "cache/oxillama/converted/mmproj-m.0.1.gguf"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"1234")
    assert stores.converted.remove_converted(path.name) == 4
    assert not path.exists() and stores.converted.remove_converted(path.name) is None


def test_a_cache_folder_that_cannot_be_made_is_one_line(folder, tmp_path, monkeypatch, capsys):
    cache = tmp_path / "cache"
    cache.write_text("a file")
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    assert main(["info", str(folder)]) == 1
    said = f"oxillama: convert: {cache}/oxillama/converted cannot be made: Not a directory, wanted"
    assert capsys.readouterr().err.startswith(said)


def test_a_folder_is_run_and_its_file_listed_and_removed(folder, capsys):
    assert main(["info", str(folder), "--json"]) == 0
    out, err = capsys.readouterr()
    name = stores.converted_files()[0].name
    assert json.loads(out)["architecture"] and f"{folder} is" in err
    assert main(["list"]) == 0 and name in capsys.readouterr().out
    assert main(["rm", name]) == 0 and not stores.converted_files()
    assert main(["rm", name]) == 1
    assert "`oxillama list` shows them" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("wanted", "name"),
    (
        (None, "m-Q4_K_M.gguf"),
        ("Q8_0", "m-Q8_0.gguf"),
        ("q2_k", "m-Q2_K.gguf"),
        ("*Q4_K_S.gguf", "m-Q4_K_S.gguf"),
        ("*q4_k_m*", "m-Q4_K_M.gguf"),
        ("m-Q8_0.gguf", "m-Q8_0.gguf"),
    ),
)
def test_the_file_that_is_wanted_is_chosen(wanted, name):
    assert choose(QUANTS, wanted, place="here") == name


def test_sets_count_as_one_file_and_encoders_of_images_as_none():
    shards = [f"Q8_0/m-Q8_0-0000{at}-of-00002.gguf" for at in (1, 2)]
    names = [*shards, "m-Q2_K.gguf", "mmproj-F16.gguf", "config.json"]
    assert choose(names, None, place="here") == shards[0]
    assert choose(names, "*Q8_0.gguf", place="here") == shards[0]
    assert choose(["mmproj.gguf", "fox.gguf"], None, place="here") == "fox.gguf"


def test_drafts_and_statistics_beside_a_model_are_no_models():
    beside = ["mtp-m-Q4_K_M.gguf", "dflash-m-Q4_K_M.gguf", "imatrix_m.gguf", "m.imatrix.gguf"]
    for wanted in (None, "Q4_K_M"):
        assert choose([*beside, "m-Q4_K_M.gguf"], wanted, place="here") == "m-Q4_K_M.gguf"
    assert choose([*beside, "m-imatrix-Q2_K.gguf"], None, place="here") == "m-imatrix-Q2_K.gguf"
    assert choose([*beside, *QUANTS], "mtp-*", place="here") == "mtp-m-Q4_K_M.gguf"
    assert choose(beside[:1], "Q4_K_M", place="here") == beside[0]


@pytest.mark.parametrize(
    ("model", "encoders", "wanted"),
    (
        ("m-Q4_K_M.gguf", ["mmproj-m-f16.gguf"], 0),
        ("m-Q4_K_M.gguf", ["mmproj-F32.gguf", "mmproj-F16.gguf", "mmproj-BF16.gguf"], 2),
        ("m-Q4_K_M.gguf", ["mmproj-m-f16.gguf", "mmproj-m-Q8_0.gguf"], 1),
        ("m-BF16.gguf", ["mmproj-m-f16.gguf", "mmproj-m-Q8_0.gguf"], 0),
        ("m-UD-Q4_K_XL.gguf", ["m.mmproj-Q8_0.gguf", "m.mmproj-f16.gguf"], 0),
        ("Q8_0/m-Q8_0-00001-of-00002.gguf", ["mmproj-F16.gguf"], 0),
        ("a/m-Q8_0.gguf", ["mmproj-a-Q8_0.gguf", "a/mmproj-a-F32.gguf"], 1),
        ("a/m-Q8_0.gguf", ["b/mmproj-F16.gguf"], None),
        ("m-Q8_0.gguf", ["a/mmproj-F16.gguf"], None),
        ("m-4b-Q8_0.gguf", ["mmproj-m-4b-F16.gguf", "mmproj-m-12b-F16.gguf"], 0),
        ("m-12b-Q8_0.gguf", ["mmproj-m-4b-F16.gguf", "mmproj-m-12b-Q8_0.gguf"], 1),
        ("other-Q8_0.gguf", ["mmproj-m-4b-F16.gguf", "mmproj-m-12b-F16.gguf"], None),
        ("m-Q8_0.gguf", [], None),
    ),
)
def test_the_encoder_of_a_model_is_chosen_among_those_of_its_repository(model, encoders, wanted):
    names = ["README.md", "mmproj.json", model, *encoders]
    assert matching_encoder(names, model) == (None if wanted is None else encoders[wanted])


def test_the_encoder_beside_a_model_is_fetched_where_images_may_come(hub, monkeypatch):
    hub.files["owner/name"] = [*QUANTS, "mmproj-m-F16.gguf"]
    assert stores.located("owner/name").name == "m-Q4_K_M.gguf"
    assert stores.located("owner/name:Q2_K", encoder=True).name == "m-Q2_K.gguf"
    assert hub.fetched == ["m-Q4_K_M.gguf", "m-Q2_K.gguf", "mmproj-m-F16.gguf"]
    hub.fetched.clear()
    monkeypatch.setattr("oxillama.server.run.serve", lambda config: 0)
    for line, fetched in (
        ("info owner/name", False),
        ("run owner/name -n 1 -p Once", False),
        ("serve owner/name", True),
        ("serve owner/name --no-mmproj", False),
        ("pull owner/name", True),
        ("pull owner/name --no-mmproj", False),
    ):
        assert main(line.split()) == 0
        assert hub.fetched == ["m-Q4_K_M.gguf", "mmproj-m-F16.gguf"][: 1 + fetched], line
        hub.fetched.clear()
    for options, fetched in (({}, True), ({"mmproj": False}, False), ({"max_images": 0}, False)):
        for file in (None, "Q4_K_M"):
            oxillama.load("owner/name", file=file, num_threads=1, **options).close()
            assert len(hub.fetched) == 1 + fetched, options
            hub.fetched.clear()


def test_the_encoder_of_a_repository_is_fetched_by_its_name(hub, monkeypatch):
    hub.files["owner/name"] = [*QUANTS, "mmproj-m-F16.gguf", "mmproj-m-Q8_0.gguf"]
    assert stores.located_encoder("owner/name").name == "mmproj-m-F16.gguf"
    assert fetch_encoder("owner/name", "Q8_0").name == "mmproj-m-Q8_0.gguf"
    assert hub.fetched == ["mmproj-m-F16.gguf", "mmproj-m-Q8_0.gguf"]
    with pytest.raises(GgufNotFound, match="owner/name: no file for 'BF16', it has mmproj-m-F16"):
        fetch_encoder("owner/name", "BF16")
    hub.files["owner/name"] = QUANTS
    with pytest.raises(GgufNotFound, match="owner/name: found no GGUF file of an image encoder"):
        stores.located_encoder("owner/name")


def test_nothing_is_guessed_among_files():
    with pytest.raises(ConfigError, match="several files for '\\*Q4\\*': m-Q4_K_M.gguf, m-Q4_K_S"):
        choose(QUANTS, "*Q4*", place="here")
    with pytest.raises(GgufNotFound, match="no file for 'Q4_K', it has m-Q2_K.gguf"):
        choose(QUANTS, "Q4_K", place="here")
    with pytest.raises(ConfigError, match="wanted file= to name one: a.gguf, b.gguf"):
        choose(["a.gguf", "b.gguf"], None, place="here")
    for names, told in (
        (["README.md"], "found no GGUF file of a model"),
        (["mmproj-F16.gguf"], "found no GGUF file of a model, only mmproj-F16.gguf, which encodes"),
        (
            ["Q8/m-00002-of-00003.gguf", "Q8/m-00003-of-00003.gguf"],
            "found Q8/m-00002-of-00003.gguf, Q8/m-00003-of-00003.gguf, wanted m-00001-of-0000",
        ),
    ):
        with pytest.raises(GgufNotFound, match=f"here: {told}"):
            choose(names, None, place="here")


def test_a_repository_of_the_hub_is_fetched_and_run(hub, capsys):
    with oxillama.load("owner/name", file="*Q8_0.gguf", num_threads=1) as engine:
        assert len(engine.generate("Once", max_tokens=3).tokens) == 3
    with oxillama.load("owner/name:Q2_K", num_threads=1) as engine:
        assert engine.model_files[0].name == "m-Q2_K.gguf"
    assert main(["pull", "owner/name"]) == 0
    assert capsys.readouterr().out.strip().endswith("owner/name/m-Q4_K_M.gguf")
    assert main(["pull", "owner/name", "--file", "*Q4*"]) == 1
    assert "several files" in capsys.readouterr().err
    assert hub.fetched == ["m-Q8_0.gguf", "m-Q2_K.gguf", "m-Q4_K_M.gguf"]
    with pytest.raises(GgufError, match="could not be fetched from the Hugging Face hub: 404"):
        oxillama.load("owner/other")


def test_every_part_of_a_set_is_fetched(hub):
    hub.files = {"owner/name": [f"m-0000{at}-of-00003.gguf" for at in (1, 2, 3)]}
    assert stores.located("hf://owner/name").name == "m-00001-of-00003.gguf"
    assert hub.fetched == hub.files["owner/name"]


def test_a_repository_of_weights_is_fetched_and_converted(hub, folder):
    hub.files = {
        "owner/whole": sorted(os.listdir(folder)),
        ("owner/whole", "at"): str(folder),
    }
    assert stores.located("owner/whole") == stores.converted_files()[0]
    # a file that an earlier download did not bring, though the model converts without it
    hub.files["owner/whole"].append("generation_config.json")
    told = "owner/whole: generation_config.json: did not come from .* wanted all "
    with pytest.raises(GgufError, match=told):
        stores.located("owner/whole")


def test_a_converted_repository_opens_offline(hub, folder, tmp_path, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    snapshot = tmp_path / "hub/models--owner--whole/snapshots/0123"
    shutil.copytree(folder, snapshot)
    hub.files = {("owner/whole", "at"): str(snapshot)}
    with pytest.raises(GgufError, match="owner/whole: could not be fetched .* 404"):
        stores.located("owner/whole")  # whether it came completely is not known
    hub.files["owner/whole"] = sorted(os.listdir(folder))
    made = stores.located("owner/whole")
    del hub.files["owner/whole"]
    assert stores.located("owner/whole") == made
    with pytest.raises(GgufError, match="owner/whole: could not be fetched"):
        stores.located("owner/whole", file="Q4_K_M")


def test_without_the_extra_the_name_and_the_extra_are_said(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "huggingface_hub", None)
    with pytest.raises(ConfigError, match=r"models/fox: no such file or folder; .*oxillama\[hub\]"):
        oxillama.load("models/fox")


def test_what_ollama_has_stored_is_run_by_its_name(home, capsys):
    blob = ollama(home)
    other = ollama(home, name="owl", tag="1b", owner="someone")
    assert stores.located("fox") == stores.located("ollama:fox:latest") == blob
    assert stores.located("someone/owl:1b") == stores.located("ollama:someone/owl:1b") == other
    assert [name for name, _ in stores.ollama_files()] == ["fox:latest", "someone/owl:1b"]
    with oxillama.load("fox", num_threads=1) as engine:
        assert engine.generate("Once", max_tokens=1).tokens
    with pytest.raises(GgufNotFound, match="Ollama has stored no such model here, wanted one that"):
        oxillama.load("ollama:bear")
    with pytest.raises(GgufNotFound, match="no such model here, wanted someone/owl:1b$"):
        oxillama.load("ollama:someone/owl")
    assert main(["rm", "fox"]) == 1 and "`ollama rm fox`" in capsys.readouterr().err
    assert main(["list", "--json"]) == 0
    assert {each["store"] for each in json.loads(capsys.readouterr().out)} == {"ollama"}


def test_a_stored_model_is_served_under_the_name_it_was_asked_by(home, monkeypatch):
    blob, asked = ollama(home), []
    monkeypatch.setattr("oxillama.server.run.serve", lambda config: asked.append(config) or 0)
    for arguments in (["fox"], ["ollama:fox", "--alias", "bear"], [str(blob)]):
        assert main(["serve", *arguments]) == 0
    assert [(each.model, each.alias) for each in asked] == [
        (str(blob), "fox"),
        (str(blob), "bear"),
        (str(blob), None),
    ]


def test_a_model_of_ollama_with_an_adapter_or_without_weights_is_refused(home):
    blob = ollama(home, layers=["application/vnd.ollama.image.adapter"])
    with pytest.raises(GgufError, match="applies an adapter"):
        stores.located("fox")
    ollama(home)
    blob.unlink()
    with pytest.raises(GgufError, match="missing, the manifest of fox names it"):
        stores.located("fox")


@pytest.mark.parametrize("name", ("../fox", "ollama:../../x", "a/b/c/d", "ollama:", "fox:../x"))
def test_a_name_never_leads_out_of_a_store(home, name):
    ollama(home)
    with pytest.raises((GgufNotFound, ConfigError, GgufError)):
        oxillama.load(name)


def test_a_manifest_or_a_model_outside_a_store_is_not_found(home):
    blob = ollama(home)
    manifest = home / ".ollama/models/manifests/registry.ollama.ai/library/fox/latest"
    outside = home / ".ollama/fox/latest"
    outside.parent.mkdir()
    manifest.rename(outside)
    for name in ("../../fox", "ollama:../../fox"):
        with pytest.raises(GgufNotFound):
            stores.located(name)
    place = home / ".lmstudio/models"
    place.mkdir(parents=True)
    for repo in ("../fox", "./fox"):
        path = place / repo / "m.gguf"
        path.parent.mkdir()
        shutil.copy(blob, path)
        with pytest.raises(GgufError):
            stores.located(f"lmstudio:{repo}")


def test_ollama_names_the_encoder_of_its_model(home):
    blob = ollama(home)
    folder = home / ".ollama/models/manifests/registry.ollama.ai/library"
    manifest = json.loads((folder / "fox/latest").read_text())

    def seeing(name, data):
        digest = hashlib.sha256(data).hexdigest()
        layer = {"mediaType": "application/vnd.ollama.image.projector"}
        layers = [*manifest["layers"], {**layer, "digest": f"sha256:{digest}"}]
        path = folder / name / "latest"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps({"layers": layers}))
        return blob.with_name(f"sha256-{digest}")

    assert stores.own_encoder(blob) is None
    encoder = seeing("fox", b"eyes")
    assert stores.own_encoder(blob) == encoder
    seeing("owl", b"eyes")
    assert stores.own_encoder(blob) == encoder
    seeing("cat", b"other eyes")  # of two, neither is the model's own
    assert stores.own_encoder(blob) is None


def test_a_manifest_with_two_files_of_weights_is_refused(home):
    ollama(home, layers=["application/vnd.ollama.image.model"])
    with pytest.raises(GgufError, match="found 2 files of weights, wanted 1"):
        stores.located("fox")


def test_a_file_that_is_named_is_not_taken_from_ollama(home, hub):
    blob = ollama(home, owner="owner", name="name")
    assert stores.located("owner/name") == blob and not hub.fetched
    stores.located("owner/name", file="Q8_0")
    assert hub.fetched == ["m-Q8_0.gguf"]


def test_a_draft_is_named_like_a_model(home, hub, monkeypatch, capsys):
    blob = ollama(home)
    place = home / ".lmstudio/models/owner/local"
    place.mkdir(parents=True)
    shutil.copy(blob, place / "local-Q8_0.gguf")
    listed = huggingface_names(monkeypatch)
    plain = oxillama.load(num_threads=1, speculative=False)
    wanted = plain.generate("Once", max_tokens=8, temperature=0).tokens
    names = ("ollama:fox", "fox", "owner/local", "owner/name:Q4_K_M", "hf://owner/name")
    with plain as engine:
        for name in names:
            done = engine.generate("Once", max_tokens=8, temperature=0, speculative=name)
            assert done.tokens == wanted and done.speculation is not None
        again = engine.generate("Once", max_tokens=8, temperature=0, speculative=names[3])
        # the same file is one draft, and a name is looked up once
        assert again.tokens == wanted and len(engine.loaded.core.speculator.cores()) == 3
        assert listed == ["owner/name", "owner/name"] and hub.fetched == ["m-Q4_K_M.gguf"] * 2
        for name, told in (
            ("owner/name:Q5_K_M", "^speculative: owner/name: .*Q5_K_M"),
            ("ollama:none", "^speculative: ollama:none: Ollama has stored no such model"),
        ):
            with pytest.raises(ConfigError, match=told):
                engine.generate("Once", max_tokens=1, speculative=name)
    with oxillama.load(num_threads=1, speculative="owner/name:Q8_0") as engine:
        assert len(engine.loaded.core.speculator.cores()) == 1
        assert engine.generate("Once", max_tokens=8, temperature=0).tokens == wanted
    made = SpeculativeEngine(SpeculativeConfig(None, "ollama:fox"))
    assert made.generate("Once", max_tokens=8, temperature=0).tokens == wanted
    made.close()
    run = ["run", "-n", "2", "--no-timings", "--speculative", "fox"]
    assert main(run) == 0 and f"oxillama: fox is {blob}\n" in capsys.readouterr().err
    assert main([*run[:-1], "ollama:none"]) == 1
    assert "oxillama: speculative: ollama:none: Ollama has stored no" in capsys.readouterr().err


def huggingface_names(monkeypatch):
    """The repositories whose files are asked for, as they come."""
    import huggingface_hub

    asked, info = [], huggingface_hub.HfApi.model_info
    monkeypatch.setattr(
        huggingface_hub.HfApi,
        "model_info",
        lambda self, repo: asked.append(repo) or info(self, repo),
    )
    return asked


def test_a_folder_of_drafts_is_chosen_from_and_one_of_weights_is_converted(folder, tmp_path):
    files = tmp_path / "files"
    files.mkdir()
    for kind in ("Q4_K_M", "Q8_0"):
        (files / f"m-{kind}.gguf").write_bytes(b"")
    assert stores.located_draft(files) == files
    made = stores.located_draft(folder)
    assert made.suffix == ".gguf" and made == stores.converted_file(folder)


def test_what_lm_studio_has_stored_is_run_by_its_name(home, hub):
    place = home / ".lmstudio/models/owner/name"
    place.mkdir(parents=True)
    shutil.copy(oxillama.embedded_path(), place / "fox-Q8_0.gguf")
    assert stores.located("lmstudio:owner/name") == place / "fox-Q8_0.gguf"
    assert stores.located("owner/name") == place / "fox-Q8_0.gguf" and not hub.fetched
    assert stores.located("hf://owner/name").name == "m-Q4_K_M.gguf"  # the hub by its own name
    assert [name for name, _ in stores.lm_studio_files()] == ["owner/name"]


def test_folders_that_lm_studio_has_moved_are_found(home, tmp_path):
    def stored(root, repo):
        path = root / repo / "fox-Q8_0.gguf"
        path.parent.mkdir(parents=True)
        shutil.copy(oxillama.embedded_path(), path)
        return path

    moved, models = tmp_path / "moved", tmp_path / "models"
    wanted = {
        "a/settings": stored(models, "a/settings"),
        "a/pointer": stored(moved / "models", "a/pointer"),
        "a/default": stored(home / ".lmstudio/models", "a/default"),
    }
    assert [name for name, _ in stores.lm_studio_files()] == ["a/default"]
    (home / ".lmstudio-home-pointer").write_text(f"{moved}\n")
    (moved / "settings.json").write_text(json.dumps({"downloadsFolder": str(models)}))
    assert dict(stores.lm_studio_files()) == wanted
    assert {name: stores.located(name) for name in wanted} == wanted
    # where both name the usual place, a model is listed once
    (home / ".lmstudio-home-pointer").write_text(str(home / ".lmstudio"))
    usual = json.dumps({"downloadsFolder": str(home / ".lmstudio/models")})
    (home / ".lmstudio/settings.json").write_text(usual)
    assert [name for name, _ in stores.lm_studio_files()] == ["a/default"]
    for settings in ("", "[]", '{"downloadsFolder": null}', '{"downloadsFolder": ""}'):
        (home / ".lmstudio/settings.json").write_text(settings)
        assert [name for name, _ in stores.lm_studio_files()] == ["a/default"]


class HubServer(BaseHTTPRequestHandler):
    """The hub's API, as far as `pull` asks: the files of repositories, and their bytes."""

    protocol_version, commit = "HTTP/1.1", "0123456789abcdef" * 2 + "01234567"
    repositories: dict = {}
    # what happens to bodies of files, one after the other; then they are sent whole
    faults: list = []
    ranges: list = []

    def do_GET(self):
        _, *parts = unquote(urlsplit(self.path).path).split("/")
        if parts[:2] == ["api", "models"] and (
            files := self.repositories.get("/".join(parts[2:4]))
        ):
            names = [{"rfilename": name} for name in files]
            self.answer(json.dumps({"id": "x", "sha": self.commit, "siblings": names}).encode())
        elif parts[2:3] == ["resolve"]:
            data = self.repositories["/".join(parts[:2])]["/".join(parts[4:])]
            tag = f'"{hashlib.sha256(data).hexdigest()}"'
            fields = {"ETag": tag, "X-Repo-Commit": self.commit}
            fault = self.faults.pop(0) if self.command == "GET" and self.faults else None
            wanted = self.headers.get("Range") if self.command == "GET" else None
            if self.command == "GET":
                self.ranges.append(wanted)
            if wanted:
                start = int(wanted.removeprefix("bytes=").rstrip("-"))
                fields["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
                return self.answer(data[start:], fields, 206)
            if fault == "damaged":
                data = data[:-2] + b"no"
            self.answer(data, fields, fault=fault)
        else:
            self.answer(b"{}", {"X-Error-Code": "RepoNotFound"}, 404)

    do_HEAD = do_GET

    def answer(self, body, headers=(), code=200, fault=None):
        self.send_response(code)
        for name, value in dict(headers).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET" and fault in ("cut", "stalled"):
            self.wfile.write(body[: len(body) // 2])
            self.wfile.flush()
            if fault == "stalled":
                stalled.set()
                go_on.wait(30)
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
        elif self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *_):
        pass


stalled, go_on = threading.Event(), threading.Event()
# jobs of a shell in the background, and what they start, ignore SIGINT
CODE = """
import signal, sys
from oxillama.cli import main
signal.signal(signal.SIGINT, signal.default_int_handler)
for line in sys.stdin.read().splitlines():
    print(f"$ {line}: {main(line.split())}", flush=True)
"""


def test_pull_brings_the_encoder_and_rm_takes_it_with_the_last_model(pull):
    data = oxillama.embedded_path().read_bytes()
    names = ("m-Q4_0.gguf", "m-Q8_0.gguf", "mmproj-F16.gguf")
    HubServer.repositories["owner/sees"] = {name: data + b" " * at for at, name in enumerate(names)}
    out, err = pull("pull owner/sees")
    first, second, last = out.splitlines()
    assert first.endswith("/m-Q4_0.gguf") and second.endswith("/mmproj-F16.gguf") and not err
    assert last == "$ pull owner/sees: 0"
    out, _ = pull("pull owner/sees:Q8_0\nrm owner/sees:Q4_0\nlist\nrm owner/sees:Q8_0\nlist")
    assert "owner/sees:mmproj-F16.gguf" in out.split("$ list: 0")[0]
    assert "owner/sees:mmproj-F16.gguf" not in out.split("$ list: 0")[1]


def test_the_client_of_the_hub_pulls_lists_and_removes(tmp_path):
    """With the hub's real client, in a process of its own: it reads its settings once."""
    pytest.importorskip("huggingface_hub")
    data = oxillama.embedded_path().read_bytes()
    HubServer.repositories = {"owner/name": {"m-Q4_K_M.gguf": data, "m-Q8_0.gguf": data + b" "}}
    server = ThreadingHTTPServer(("127.0.0.1", 0), HubServer)
    threading.Thread(target=server.serve_forever, daemon=True).start()

    def said(*lines, port=server.server_port):
        done = subprocess.run(
            [sys.executable, "-c", CODE],
            input="\n".join(lines),
            capture_output=True,
            text=True,
            timeout=60,
            env={
                **os.environ,
                "HF_ENDPOINT": f"http://127.0.0.1:{port}",
                "HF_HOME": str(tmp_path / "hf"),
                "HF_HUB_DISABLE_TELEMETRY": "1",
            },
        )
        return done.stdout, done.stderr

    out, err = said("list", "pull owner/name", "pull owner/name:Q8_0", "pull owner/none", "list")
    assert "no models here; `oxillama pull OWNER/NAME` fetches one" in err
    assert "owner/none: no such file or folder here, and no such repository" in err
    assert out.index("/m-Q4_K_M.gguf\n") < out.index("/m-Q8_0.gguf\n")
    assert "owner/name:m-Q4_K_M.gguf  hub" in out and "owner/name:m-Q8_0.gguf    hub" in out
    # the name that `list` shows opens it, also where the hub is not reached; one of two is removed
    server.shutdown()
    server.server_close()
    out, err = said(
        "info owner/name:m-Q8_0.gguf",
        "rm owner/name:Q8_0",
        "list",
        "rm owner/name",
        "rm owner/name",
    )
    assert "is " in err and "general" not in err
    assert "removed owner/name:Q8_0, 4 MB" in out and "owner/name:m-Q4_K_M.gguf  hub" in out
    assert "m-Q8_0.gguf    hub" not in out
    assert "removed owner/name, 4 MB" in out and "rm: owner/name: found no such model" in err
    out, err = said("pull owner/name")
    assert len(err.splitlines()) == 1 and "could not be fetched from the Hugging Face hub" in err


@pytest.fixture
def pull(tmp_path):
    """Runs a line of the command with the hub's real client, over a server with one model; what is
    pulled is in `pull.cache`.
    """
    pytest.importorskip("huggingface_hub")
    data = oxillama.embedded_path().read_bytes()
    HubServer.repositories, HubServer.faults, HubServer.ranges = (
        {"owner/name": {"m-Q8_0.gguf": data}, "owner/set": {}},
        [],
        [],
    )
    for at in (1, 2):
        HubServer.repositories["owner/set"][f"m-0000{at}-of-00002.gguf"] = data + b" " * at
    stalled.clear()
    go_on.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), HubServer)
    threading.Thread(target=server.serve_forever, daemon=True).start()

    class Pull:
        cache = tmp_path / "hf/hub"
        blobs = cache / "models--owner--name/blobs"

        def start(self, line, **options):
            return subprocess.Popen(
                [sys.executable, "-c", CODE.replace("sys.stdin.read()", repr(line))],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env={
                    **os.environ,
                    "HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}",
                    "HF_HOME": str(tmp_path / "hf"),
                    "HF_HUB_DISABLE_TELEMETRY": "1",
                    "HF_HUB_DOWNLOAD_TIMEOUT": "20",
                },
                **options,
            )

        def __call__(self, line, *faults, **options):
            HubServer.faults[:] = faults
            out, err = self.start(line, **options).communicate(timeout=60)
            return out, err

        def interrupted(self, line, signal_number):
            """Ended by a signal while half of the file has come."""
            HubServer.faults[:] = ["stalled"]
            stalled.clear()
            process = self.start(line)
            assert stalled.wait(30)
            end = time.monotonic() + 20
            while not list(self.cache.glob("*/blobs/*.incomplete")):
                assert time.monotonic() < end
                time.sleep(0.01)
            process.send_signal(signal_number)
            out, err = process.communicate(timeout=30)
            go_on.set()
            return out, err

    yield Pull()
    go_on.set()
    server.shutdown()
    server.server_close()


def test_a_file_that_came_damaged_is_refused_and_removed(pull):
    _, err = pull("pull owner/name", "damaged")
    assert len(err.splitlines()) == 1 and "m-Q8_0.gguf: damaged on its way" in err
    assert "found SHA-256 " in err and "wanted " in err and "the file is removed" in err
    assert list(pull.blobs.glob("*")) == [] and "no models here" in pull("list")[1]
    out, err = pull("pull owner/name")
    assert "/m-Q8_0.gguf\n$ pull owner/name: 0" in out and not err
    _, err = pull("pull owner/set", None, "damaged")  # of a set each part is looked at
    assert "owner/set: m-00002-of-00002.gguf: damaged on its way" in err
    names = [path.name for path in pull.cache.glob("models--owner--set/snapshots/*/*")]
    assert names == ["m-00001-of-00002.gguf"]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows lets few users make symbolic links")
@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_a_damaged_file_that_two_downloads_remove_is_one_line_of_both(tmp_path, monkeypatch, when):
    """Both wait for one download, look at what came, and one is first."""
    folder = tmp_path / "models--owner--name"
    blob, link = folder / "blobs" / ("0" * 64), folder / "snapshots/1/m.gguf"
    for each in (blob, link):
        each.parent.mkdir(parents=True)

    def download():
        blob.write_bytes(b"damaged")
        link.symlink_to(blob)
        return str(link)

    def other():
        for each in (blob, link):
            each.unlink()

    listed, digest = hub_store._blobs, hashlib.file_digest

    def blobs(folder):
        found = listed(folder)
        if when == "before" and found:
            other()
        return found

    def file_digest(file, name):
        if when == "meanwhile":
            other()
        return digest(file, name)

    monkeypatch.setattr(hub_store, "cached_folder", lambda repo: folder)
    monkeypatch.setattr(hub_store, "_blobs", blobs)
    monkeypatch.setattr(hashlib, "file_digest", file_digest)
    told = {"before": "removed by another process", "meanwhile": "damaged on its way"}
    with pytest.raises(GgufError, match=f"owner/name: m.gguf: .*{told[when]}"):
        hub_store._whole("owner/name", "owner/name: m.gguf", download)


def test_a_download_goes_on_where_the_connection_was_lost(pull):
    data = HubServer.repositories["owner/name"]["m-Q8_0.gguf"]
    out, _ = pull("pull owner/name", "cut")
    (blob,) = pull.blobs.glob("*")
    assert blob.read_bytes() == data and out.endswith("$ pull owner/name: 0\n")
    assert len(HubServer.ranges) == 2


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_download_that_was_interrupted_is_no_model_and_begins_again(pull, number):
    out, err = pull.interrupted("pull owner/name", number)
    assert not err and out == ("" if number == signal.SIGKILL else "$ pull owner/name: 130\n")
    left = list(pull.blobs.glob("*"))
    assert len(left) == (number == signal.SIGKILL)
    assert "no models here" in pull("list")[1]
    for path in left:  # by a process that has ended for long
        os.utime(path, (1e9, 1e9))
    # what another download writes is no business of this one
    pull.blobs.mkdir(exist_ok=True)
    (pull.blobs / "0.1.incomplete").write_bytes(b"x")
    assert "$ pull owner/name: 0" in pull("pull owner/name")[0]
    data = HubServer.repositories["owner/name"]["m-Q8_0.gguf"]
    names = sorted(path.name for path in pull.blobs.glob("*"))
    assert names == ["0.1.incomplete", hashlib.sha256(data).hexdigest()]
    assert (pull.blobs / names[1]).read_bytes() == data


def test_what_an_interrupted_download_left_can_be_removed(pull):
    pull.interrupted("pull owner/name", signal.SIGKILL)
    assert list(pull.cache.glob("models--*"))
    assert pull("rm owner/name")[0] == "removed owner/name, 0 MB\n$ rm owner/name: 0\n"
    assert not list(pull.cache.glob("models--*"))
    assert "rm: owner/name: found no such model" in pull("rm owner/name")[1]


def test_a_disk_that_is_full_is_one_line_and_leaves_nothing(pull):
    resource = pytest.importorskip("resource")
    small = (1 << 20, 1 << 20)
    _, err = pull(
        "pull owner/name", preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, small)
    )
    told = f"oxillama: owner/name: m-Q8_0.gguf: cannot be stored in {pull.cache}: File too large\n"
    assert err == told and list(pull.blobs.glob("*")) == []


def test_an_empty_name_is_not_the_current_folder(tmp_path, monkeypatch):
    (tmp_path / "only.gguf").write_bytes(b"GGUF")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="^model: found '', wanted a file"):
        stores.located("")
