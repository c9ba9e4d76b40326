"""The command line: what it prints, and one clear line with a code when it cannot."""

import io
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import oxillama
from oxillama.cli import loading, main, streams
from tests.cli.console import interruptible
from tests.model import tiny
from tests.model.worded import worded
from tests.speculative.law import target_of
from tests.speculative.test_eagle import draft_of


def printed(capsys, *arguments):
    """Exit code, standard output and standard error of one command."""
    code = main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    return code, out, err


def test_run_continues_the_prompt_the_same_way_each_time(capsys):
    command = ("run", "-p", "Once upon a time", "-n", 24, "--temp", 0, "--no-timings")
    first = printed(capsys, *command)
    assert first == printed(capsys, *command) and not first[2]
    assert first[0] == 0 and first[1].startswith("Once upon a time, there was a ")
    seeded = [
        printed(capsys, "run", "-n", 24, "--temp", 1, "--seed", 7, "-t", threads)[1]
        for threads in (1, 2)
    ]
    assert seeded[0] == seeded[1]


def test_more_threads_than_cpus_are_told(capsys, monkeypatch):
    monkeypatch.setattr(loading, "available_cpus", lambda: 2)
    command = ("run", "-p", "Once", "-n", 1, "--no-timings", "-t")
    assert not printed(capsys, *command, 2)[2]
    code, _, err = printed(capsys, *command, 3)
    assert code == 0 and err.startswith(
        "oxillama: --threads: found 3 where this process may use 2 C"
    )


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (MemoryError(), "oxillama: out of memory\n"),
        (MemoryError("9 bytes\nfor weights"), "oxillama: out of memory: 9 bytes for weights\n"),
    ],
)
def test_memory_that_is_refused_is_one_line(capsys, monkeypatch, error, told):
    def load(*_, **__):
        raise error

    monkeypatch.setattr(oxillama, "load", load)
    assert printed(capsys, "run", "-p", "Once") == (1, "", told)


def test_what_is_piped_in_is_the_prompt(capsys, tmp_path, monkeypatch):
    def run(piped, *options):
        (tmp_path / "in").write_bytes(piped)
        with (tmp_path / "in").open() as stdin:
            monkeypatch.setattr("sys.stdin", stdin)
            return printed(capsys, "run", *options, "-n", 4, "--temp", 0, "--no-timings")

    wanted = run(b"A cat", "-p", "The dog was")
    assert wanted[0] == 0 and wanted[1].startswith("The dog was ")
    for options in ((), ("-p", "-"), ("-f", "-")):
        assert run(b"The dog was\n", *options) == wanted
        assert run(b"\xef\xbb\xbfThe dog was\n", *options) == wanted  # a mark of UTF-8
    assert run(b"")[1].startswith("Once upon a time")
    refused = "oxillama: standard input: byte 3 is not UTF-8, wanted text in UTF-8\n"
    assert run(b"caf\xe9") == (1, "", refused)
    empty = run(b"", "-p", "-")
    for options, out in (((), run(b"")), (("-p", "-"), empty)):
        monkeypatch.setattr("sys.stdin", None)  # closed
        assert printed(capsys, "run", *options, "-n", 4, "--temp", 0, "--no-timings") == out


class Terminal(io.StringIO):
    """A standard error stream that is a terminal, and tells when something is written."""

    def __init__(self):
        super().__init__()
        self.written = threading.Event()

    def isatty(self):
        return True

    def write(self, text):
        super().write(text)
        self.written.set()
        return len(text)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ((), "[waiting for the end of standard input; -p TEXT gives a prompt]\n"),
        (("-p", "-"), "[waiting for the end of standard input]\n"),
    ],
)
def test_a_pipe_that_stays_open_is_told_at_a_terminal(capsys, monkeypatch, options, told):
    reading, writing = os.pipe()
    terminal = Terminal()

    def write():
        if terminal.written.wait(30):
            os.write(writing, b"The dog was\n")
        os.close(writing)

    writer = threading.Thread(target=write)
    writer.start()
    asked = ("run", *options, "-n", 4, "--temp", 0, "--no-timings")
    with open(reading) as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        monkeypatch.setattr("sys.stderr", terminal)
        monkeypatch.setattr(streams, "PATIENCE", 0.01)
        code, out, _ = printed(capsys, *asked)
    writer.join()
    assert code == 0 and out.startswith("The dog was ") and terminal.getvalue().startswith(told)


def test_a_slow_pipe_is_not_told_where_nobody_looks(capsys, monkeypatch):
    reading, writing = os.pipe()
    late = threading.Timer(0.2, lambda: (os.write(writing, b"The dog was\n"), os.close(writing)))
    late.start()
    with open(reading) as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        monkeypatch.setattr(streams, "PATIENCE", 0.01)
        code, out, err = printed(capsys, "run", "-n", 4, "--temp", 0, "--no-timings")
    late.join()
    assert code == 0 and out.startswith("The dog was ") and err == ""


def test_run_stops_before_a_stop_text(capsys):
    code, out, _ = printed(
        capsys, "run", "-p", "Once upon a time", "-n", 60, "--temp", 0, "--stop", "."
    )
    assert code == 0 and "." not in out


def test_a_draft_that_a_model_must_be_loaded_with_is(capsys, tmp_path):
    model, draft = target_of(tmp_path / "m.gguf"), draft_of(tmp_path / "d.gguf", "row")
    command = ("run", model, "-p", "abc", "-n", 30, "--temp", 0, "--ignore-eos", "-t", 1)
    wanted = printed(capsys, *command, "--no-timings")
    code, out, err = printed(capsys, *command, "--speculative", draft)
    assert (code, out) == wanted[:2] and code == 0, err
    code, out, err = printed(capsys, "run", draft, "-p", "abc")
    assert code and "drafts for another model, which is loaded with it" in err and not out


def test_info_tells_what_the_file_holds(capsys):
    code, out, _ = printed(capsys, "info", "--json", "--tensors", "--metadata")
    report = json.loads(out)
    assert code == 0
    assert (
        report["architecture"] == "llama"
        and report["chat_template"]
        and report["vocabulary"] == len(report["metadata"]["tokenizer.ggml.tokens"])
    )
    assert report["tensor_bytes"] == sum(tensor["bytes"] for tensor in report["tensors"])
    code, out, _ = printed(capsys, "info", "--tensors")
    assert code == 0 and "token_embd.weight" in out


def test_tokenize_reads_a_file_as_it_is(capsys, tmp_path, monkeypatch):
    path = tmp_path / "text"
    path.write_bytes("a\nfüchsin\n".encode())
    wanted = printed(capsys, "tokenize", "-p", "a\nfüchsin\n", "--json")[1]
    assert printed(capsys, "tokenize", "-f", path, "--json")[1] == wanted
    with pytest.raises(SystemExit):
        main(["tokenize", "-f", str(path), "-p", "x"])
    assert "not allowed with argument" in capsys.readouterr().err
    code, _, err = printed(capsys, "tokenize", "-f", tmp_path / "nowhere")
    assert code == 1 and "nowhere: No such file or directory, wanted a readable file" in err


def test_tokenize_shows_ids_that_spell_the_text(capsys):
    import oxillama

    code, out, _ = printed(capsys, "tokenize", "-p", "a red fox", "--json", "--no-special")
    assert code == 0
    assert (
        oxillama.TokenizerBridge.from_gguf(oxillama.embedded_path()).decode(json.loads(out))
        == "a red fox"
    )
    shown = printed(capsys, "tokenize", "-p", "a fox<|im_end|>")[1]
    assert (
        shown == "       0  '<|begin|>'\n      69  'a'\n     909  ' fox'\n       3  '<|im_end|>'\n"
    )


def test_bench_prints_the_columns_it_promises(capsys):
    code, out, _ = printed(
        capsys, "bench", "-p", 16, "-n", 4, "-d", 8, "-b", 2, "-r", 1, "-t", 1, "--json"
    )
    result = json.loads(out)
    assert code == 0 and result["threads"] == 1 and result["batch"] == 2 and result["depth"] == 8
    assert (
        all(result[key] > 0 for key in ("pp_tps", "tg_tps", "load_s", "peak_rss_mb", "model_bytes"))
        and result["isa"]
    )


def test_a_model_with_an_encoder_runs_and_agrees_with_its_meaning(capsys, tmp_path):
    path, text = str(worded(tmp_path)), "a source of words"
    with oxillama.load(path) as engine:
        done = engine.generate(text, max_tokens=6, temperature=0)
    code, out, _ = printed(capsys, "run", "-m", path, "-p", text, "-n", 6, "--temp", 0)
    assert code == 0 and out == f"{done.text}\n"
    code, out, _ = printed(capsys, "doctor", "-m", path, "-p", text)
    assert code == 0 and "86 ops agree with the reference" in out
    code, _, err = printed(capsys, "bench", "-m", path)
    assert code == 1 and "raw_loop: found t5" in err


def test_a_model_that_fills_in_masks_runs_and_agrees_with_its_meaning(capsys, tmp_path):
    path, text = str(worded(tmp_path, "llada")), "a text of words"
    how = oxillama.DiffusionConfig(
        steps=5, eps=0.1, order="margin", order_temperature=0.2, guidance=0.5
    )
    with oxillama.load(path) as engine:
        done = engine.generate(text, max_tokens=12, temperature=0, seed=3, diffusion=how)
    options = ["-n", 12, "--temp", 0, "-s", 3, "--diffusion-steps", 5, "--diffusion-eps", 0.1]
    options += ["--diffusion-alg-temp", 0.2, "--diffusion-cfg-scale", 0.5]
    for order in ("margin", "2"):
        ask = ["run", "-m", path, "-p", text, *options, "--diffusion-algorithm", order]
        code, out, _ = printed(capsys, *ask)
        assert code == 0 and out == f"{text}{done.text}\n"
    code, out, _ = printed(capsys, "doctor", "-m", path, "-p", text)
    assert code == 0 and "ops agree with the reference" in out
    code, _, err = printed(capsys, *ask, "--diffusion-block-length", 4)
    assert code == 1 and "eps: found 0.1 and block_length 4" in err


def test_doctor_agrees_with_the_embedded_model(capsys):
    code, out, _ = printed(capsys, "doctor")
    assert code == 0 and "ops agree" in out


def test_quantize_writes_a_file_that_runs(capsys, tmp_path):
    import oxillama

    code, out, _ = printed(
        capsys, "quantize", oxillama.embedded_path(), tmp_path / "q.gguf", "Q4_K_M"
    )
    assert code == 0
    with oxillama.load(tmp_path / "q.gguf") as engine:
        assert len(engine.generate("Once upon a time", max_tokens=5).tokens) == 5
    dry = printed(
        capsys, "quantize", oxillama.embedded_path(), tmp_path / "no.gguf", "Q4_0", "--dry-run"
    )
    assert dry[0] == 0 and not (tmp_path / "no.gguf").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("run", "missing.gguf"), ("missing.gguf", "no such file")),
        (("run", "gpt2"), ("gpt2: no such file", "GGUF file", "OWNER/NAME", "oxillama pull")),
        (("pull", "gpt2"), ("'gpt2'", "OWNER/NAME[:QUANT]")),
        (("run", "-c", "4", "-p", "one fox " * 4), ("takes at most 3; -c", "--truncate-prompt")),
        (("run", "--temp", "-1"), ("temperature", "-1")),
        (("run", "--grammar-file", "missing.gbnf"), ("missing.gbnf",)),
        (("run", "--json-schema", "{"), ()),
        (("bench", "-p", "0"), ("-p", "0")),
        (("doctor", "-p", "one fox " * 700), ("tokens, wanted 1 to 512",)),
        (("quantize", "missing.gguf", "out.gguf", "Q4_0"), ("missing.gguf",)),
    ],
)
def test_what_cannot_be_done_is_one_line_and_code_1(
    capsys, monkeypatch, tmp_path, arguments, words
):
    monkeypatch.chdir(tmp_path)
    code, _, err = printed(capsys, *arguments)
    assert code == 1 and err.startswith("oxillama: ") and err.count("\n") == 1
    assert all(word in err for word in words), err


@pytest.mark.parametrize("command", [("perplexity",), ("imatrix", "-o", "a.gguf")])
def test_a_model_in_place_of_a_text_is_told_apart(capsys, command):
    path = str(oxillama.embedded_path())
    refused = f"oxillama: {path}: is a GGUF file, wanted a text\n"
    assert printed(capsys, *command, path) == (1, "", refused)


LATIN = "caf\udce9"  # what Python makes of b"caf\xe9"


@pytest.mark.parametrize(
    "arguments",
    [
        ("run", "-p"),
        ("run", "-sys"),
        ("run", "--stop"),
        ("run", "--grammar"),
        ("run", "--regex"),
        ("run", "--dry-sequence-breaker"),
        ("chat", "--chat-template"),
        ("tokenize", "-p"),
        ("doctor", "-p"),
        ("serve", "--alias"),
    ],
)
def test_a_text_that_is_not_utf8_is_named_by_its_option(capsys, arguments):
    with pytest.raises(SystemExit, match="^2$"):
        main([*arguments, LATIN])
    said = capsys.readouterr().err
    assert f"{arguments[-1]}" in said and said.count("\n") == 1
    assert "byte 3 is not UTF-8, wanted text in UTF-8" in said
    schema = printed(capsys, "run", "--json-schema", f'{{"const": "{LATIN}"}}')
    refused = "oxillama: --json-schema: byte 14 is not UTF-8, wanted text in UTF-8\n"
    assert schema == (1, "", refused)


@pytest.mark.parametrize("mode", [{"LC_ALL": "C", "PYTHONUTF8": "0"}, {"PYTHONUTF8": "1"}])
def test_an_argument_in_utf8_is_taken_whatever_the_locale(mode):
    command = [sys.executable, "-m", "oxillama", "tokenize", "--json", "-p", "é".encode()]
    env = {**os.environ, **mode, "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    bridge = oxillama.TokenizerBridge.from_gguf(oxillama.embedded_path())
    assert json.loads(done.stdout) == bridge.encode("é", add_special=True)


def test_nobody_waits_for_converters_who_converts_nothing():
    """Their import would be a fifth of the time until a model is loaded."""
    code = "import sys, oxillama.api, oxillama.cli; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    found = done.stdout.split()
    assert "oxillama.lora.stack" in found and "oxillama.cli.convert" in found
    assert not [name for name in found if name.startswith("oxillama.convert")]


def test_a_long_prompt_loses_its_beginning_where_asked_for(capsys):
    text = "one fox " * 9
    with oxillama.load() as engine:
        count = len(engine.tokenize(text))
    asked = ("run", "-c", "8", "--truncate-prompt", "-n", "2", "-p", text)
    code, out, err = printed(capsys, *asked)
    assert code == 0 and out.startswith(text)
    assert f"[{count - 6} of the prompt's {count} tokens were left out]\n" in err
    assert "left out" not in printed(capsys, "run", "-c", "64", *asked[3:])[2]


def test_a_broken_file_is_one_line(capsys, tmp_path):
    tiny.write(tmp_path / "m.gguf", "llama", tensors={"blk.1.ffn_up.weight": None})
    code, _, err = printed(capsys, "run", tmp_path / "m.gguf")
    assert (
        code == 1
        and err == "oxillama: blk.1.ffn_up.weight: the file has no such tensor, llama needs it\n"
    )
    (tmp_path / "empty.gguf").write_bytes(b"")
    assert printed(capsys, "info", tmp_path / "empty.gguf")[0] == 1


def test_snapshot_info_tells_what_is_saved_and_refuses_the_rest_in_a_line(capsys, tmp_path):
    path = tmp_path / "saved"
    with oxillama.load() as engine:
        engine.generate("Once upon a time", max_tokens=5)
        engine.snapshot_to_file(path)
    code, out, _ = printed(capsys, "snapshot", "info", path)
    assert (
        code == 0
        and "OXISNAP1, version 1" in out
        and "5 of them generated" in out
        and "temperature 0.7" in out
    )
    code, out, _ = printed(capsys, "snapshot", "info", path, "--json")
    assert (
        code == 0
        and json.loads(out)["tokens"] == 10
        and json.loads(out)["file_bytes"] == path.stat().st_size
    )
    path.write_bytes(path.read_bytes()[:-1])
    code, out, err = printed(capsys, "snapshot", "info", path)
    assert (
        code == 1
        and not out
        and err.startswith("oxillama: length: the header says")
        and err.count("\n") == 1
    )
    code, _, err = printed(capsys, "snapshot", "info", tmp_path / "none")
    assert code == 1 and "none: no such file, wanted a saved snapshot" in err


@pytest.mark.parametrize("command", ["run", "chat", "tokenize", "doctor"])
def test_a_sentence_in_a_models_place_is_told_how_prompts_are_given(capsys, command):
    assert main([command, "Why is the sky blue?"]) == 1
    told = "oxillama: Why is the sky blue?: no such file or folder; -p gives a prompt\n"
    assert capsys.readouterr() == ("", told)


@pytest.mark.parametrize(
    ("arguments", "told"),
    (
        (("run", "-p", "a", "-p", "b"), "run: -p: found 'a' and 'b', wanted one of them"),
        (("run", "-n", "3", "--temp", "1", "-n", "4"), "-n: found 3 and 4, wanted one of them"),
        (("serve", "--port", "x"), "--port: found 'x', wanted a whole number"),
        (("serve", "--grace", "x"), "--grace: found 'x', wanted a number"),
        (("serve", "--max-queue", "1.5"), "--max-queue: found '1.5', wanted a whole number"),
    ),
)
def test_an_option_is_given_once_and_as_its_kind(capsys, arguments, told):
    with pytest.raises(SystemExit, match="2"):
        main(list(arguments))
    out, err = capsys.readouterr()
    assert not out and told in err and err.count("\n") == 1


def program(*arguments, **options):
    """`oxillama` in a process of its own."""
    command = [sys.executable, "-m", "oxillama", *arguments]
    return subprocess.run(command, text=True, encoding="utf-8", timeout=120, **options)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is full")
@pytest.mark.parametrize("command", ["run -n 4 --no-timings", "info", "tokenize -p ab"])
def test_output_that_is_not_taken_is_one_line(command):
    with open("/dev/full", "w") as full:
        done = program(*command.split(), stdout=full, stderr=subprocess.PIPE)
    told = "oxillama: output: cannot be written: No space left on device\n"
    assert (done.returncode, done.stderr) == (1, told)


@pytest.mark.skipif(os.name == "nt", reason="141 is what a shell makes of SIGPIPE")
@pytest.mark.parametrize("command", ["run -n 4 --no-timings", "info", "tokenize -p ab"])
def test_a_reader_that_has_gone_ends_a_command_quietly(command):
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "oxillama", *command.split()],
            stdout=writing,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
        )
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")


def test_ctrl_c_ends_a_command_with_130():
    command = [sys.executable, "-m", "oxillama", "run", "-p", "Once upon", "--no-timings"]
    endless = ("-n", "1000000", "--ignore-eos", "--context-shift")
    process = interruptible([*command, *endless], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        assert process.stdout.read(12) == b"Once upon a "
        process.send_signal(signal.SIGINT)
        assert process.stdout.read() and process.stderr.read() == b""
        assert process.wait(20) == 130
    finally:
        process.kill()
        process.communicate()


def test_timings_are_a_line_of_their_own_where_both_streams_are_one_pipe():
    done = program(
        *("run", "-p", "Once upon", "-n", "2", "--temp", "0"),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"},
    )
    assert done.stdout.startswith("Once upon a time\n[prompt 3 tokens")


def without_input(output, *arguments):
    """Exit code of `oxillama` whose standard input and error are closed; it writes to a file."""
    if sys.platform != "win32":
        script = 'exec "$@" <&- 2>&-'
        command = ["sh", "-c", script, "sh", sys.executable, "-m", "oxillama", *arguments]
        return subprocess.run(command, stdout=output, timeout=120).returncode
    import msvcrt

    handle = msvcrt.get_osfhandle(output.fileno())
    os.set_handle_inheritable(handle, True)
    streams = subprocess.STARTUPINFO(
        dwFlags=subprocess.STARTF_USESTDHANDLES, hStdInput=0, hStdOutput=handle, hStdError=0
    )
    command = [sys.executable, "-m", "oxillama", *arguments]
    return subprocess.run(command, startupinfo=streams, close_fds=False, timeout=120).returncode


def test_closed_streams_are_empty_ones(tmp_path):
    base = ("run", "-p", "Once upon", "-n", "4", "--temp", "0")
    wanted = program(*base, "--no-timings", capture_output=True).stdout
    assert wanted.startswith("Once upon a time")
    with (tmp_path / "out").open("w+", encoding="utf-8") as output:
        assert without_input(output, *base) == 0 and without_input(output, "chat", "-n", "4") == 0
    assert (tmp_path / "out").read_text(encoding="utf-8") == wanted


def test_a_warning_is_one_line(tmp_path):
    model = tmp_path / "m.gguf"
    tiny.write(model, "llama").close()
    code = (
        "import sys, warnings, oxillama.cli.info as info\n"
        "from oxillama.cli import MODULES, main\n"
        "def show(arguments):\n"
        "    warnings.warn('keys: found 1,\\n wanted 2')\n"
        "    warnings.warn('old', DeprecationWarning)\n"
        "    return 0\n"
        "info._info = show\n"
        "code = main(['info'])\n"
        "warnings.warn('afterwards')\n"
        "sys.exit(code)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    first, second, third = done.stderr.splitlines()
    assert done.returncode == 0 and first == "oxillama: warning: keys: found 1, wanted 2"
    assert second.endswith(": warning: old") and "<string>:5: " in second
    assert third == "<string>:9: UserWarning: afterwards"


def test_the_help_of_a_command_begins_with_what_it_does(capsys):
    for command, about in (
        (("rm",), "Remove a fetched or converted model."),
        (("sidecar", "clear"), "Remove the sidecars of a folder."),
    ):
        with pytest.raises(SystemExit):
            main([*command, "--help"])
        assert about in capsys.readouterr().out.splitlines()
