"""`oxillama serve` as a process: it says where it listens, ends in order, and exits with 0, or
with 1 if its model cannot be loaded.
"""

import json
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest

import oxillama
from oxillama.cli import main, parser
from oxillama.cli.serve import LIMITS, _engine
from oxillama.server.settings import ServerConfig
from tests.cli.console import InConsole

VERSION = oxillama.__version__


WINDOWS = sys.platform == "win32"
with_signals = pytest.mark.skipif(WINDOWS, reason="Windows has no such signal")


def heard():
    """Tests may run where hang-ups are ignored (nohup), and interrupts (a shell's background)."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def start(*args, preexec_fn=None if WINDOWS else heard):
    """(the process, its address), once it listens."""
    process = (InConsole if WINDOWS else subprocess.Popen)(
        [sys.executable, "-m", "oxillama", "serve", "--port", "0", *args],
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=preexec_fn,
    )
    line = process.stderr.readline()
    return process, re.fullmatch(r"oxillama: listening on (http://127\.0\.0\.1:\d+)\n", line)[1]


def ask(url, body=None):
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(url, data), timeout=20) as answer:
        return json.loads(answer.read())


@pytest.mark.parametrize(
    "name",
    ["SIGINT", *(pytest.param(each, marks=with_signals) for each in ("SIGTERM", "SIGHUP"))],
)
def test_a_signal_finishes_what_runs_saves_sessions_and_exits_with_0(tmp_path, name):
    process, url = start("--sessions-dir", str(tmp_path))
    try:
        body = {"prompt": "Once", "max_tokens": 3, "session": "s"}
        assert ask(f"{url}/v1/completions", body)["usage"]["completion_tokens"] == 3
        long = {"prompt": "Once", "max_tokens": 300, "ignore_eos": True, "stream": True}
        request = urllib.request.Request(f"{url}/v1/completions", json.dumps(long).encode())
        with urllib.request.urlopen(request, timeout=30) as answer:
            first = answer.readline()
            process.send_signal(getattr(signal, name))
            rest = answer.read()
        assert first.startswith(b"data: ")
        assert rest.endswith(b"data: [DONE]\n\n") and rest.count(b"data: ") > 200
        assert process.wait(20) == 0
        assert (tmp_path / "s.session").is_file()
        last = [json.loads(line) for line in process.stderr.read().splitlines()][-2:]
        assert [each["event"] for each in last] == ["session_saved", "stopped"]
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def test_a_session_that_cannot_be_saved_at_the_end_is_told(tmp_path):
    folder = tmp_path / "sessions"
    process, url = start("--sessions-dir", str(folder))
    try:
        for name in "st":
            ask(f"{url}/v1/completions", {"prompt": "Once", "max_tokens": 3, "session": name})
        folder.rmdir()
        process.send_signal(signal.SIGINT if WINDOWS else signal.SIGTERM)
        assert process.wait(20) == 1
        *log, last = process.stderr.read().splitlines()
        events = [json.loads(line) for line in log][-3:]
        names = ["session_not_saved", "session_not_saved", "stopped"]
        assert [each["event"] for each in events] == names
        assert last == f"oxillama: {events[0]['error']}; 1 more, see the log"
        assert last.startswith("oxillama: session s: cannot be written: ")
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def test_a_folder_without_models_is_told_at_the_start_and_to_clients(tmp_path):
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "a.gguf").write_bytes(oxillama.embedded_path().read_bytes())
    process, url = start("--models-dir", str(tmp_path))
    told = f"{tmp_path} holds no *.gguf (folders in it are not looked at)"
    try:
        for more, said in (({}, "is required, "), ({"model": "a"}, "'a' is not served here, ")):
            with pytest.raises(urllib.error.HTTPError) as refused:
                ask(f"{url}/v1/completions", {"prompt": "Once", **more})
            with refused.value as answer:
                assert json.loads(answer.read())["error"]["message"] == f"model: {said}{told}"
        process.send_signal(signal.SIGINT if WINDOWS else signal.SIGTERM)
        assert process.wait(20) == 0
        events = [json.loads(line) for line in process.stderr.read().splitlines()]
        assert [each["event"] for each in events[:2]] == ["listening", "no_models"]
        assert events[1]["message"] == told
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def test_a_signal_that_comes_with_the_address_ends_the_server_in_order():
    process, _ = start()
    try:
        process.send_signal(signal.SIGINT if WINDOWS else signal.SIGTERM)
        assert process.wait(20) == 0
        last = json.loads(process.stderr.read().splitlines()[-1])
        assert last["event"] == "stopped"
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


@with_signals
def test_a_hang_up_that_is_ignored_stays_ignored():
    process, url = start(preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    try:
        process.send_signal(signal.SIGHUP)
        body = {"prompt": "Once", "max_tokens": 1}
        assert ask(f"{url}/v1/completions", body)["usage"]["completion_tokens"] == 1
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


@with_signals
def test_a_log_that_cannot_be_written_keeps_no_server_from_starting():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "oxillama", "serve", "--port", str(port)]
    with open("/dev/full", "w") as full, subprocess.Popen(command, stderr=full) as process:
        try:
            for _ in range(200):
                try:
                    assert ask(f"http://127.0.0.1:{port}/version") == {"version": VERSION}
                    break
                except urllib.error.URLError:
                    assert process.poll() is None
                    time.sleep(0.05)
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0
        finally:
            process.kill()


@with_signals
def test_a_log_that_nobody_reads_keeps_no_request_waiting():
    process, url = start()
    try:
        # more lines than a pipe holds (64 KiB); nobody reads them
        for _ in range(400):
            assert ask(f"{url}/tokenize", {"content": "Once"})["tokens"]
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def test_a_second_interrupt_ends_the_server_at_once_and_shows_no_stack():
    process, url = start()
    try:
        ask(f"{url}/v1/completions", {"prompt": "Once", "max_tokens": 1})
        endless = {"prompt": "Once", "max_tokens": 10**6, "ignore_eos": True, "stream": True}
        endless["context_shift"] = True
        request = urllib.request.Request(f"{url}/v1/completions", json.dumps(endless).encode())
        with urllib.request.urlopen(request, timeout=30) as answer:
            assert answer.readline().startswith(b"data: ")
            process.send_signal(signal.SIGINT)
            for _ in range(200):
                answer.readline()
            process.send_signal(signal.SIGINT)
            assert process.wait(20) == 0
        lines = [json.loads(line) for line in process.stderr.read().splitlines()]
        assert lines[-1]["event"] == "stopped" and not any("trace" in each for each in lines)
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


@pytest.mark.parametrize(
    "args, why",
    [
        (["--host", "0.0.0.0"], "without an API key"),
        (["--port", "70000"], "port"),
        (["--models-dir", "/nowhere"], "models_dir"),
        (["gpt2"], "gpt2: no such file or folder, and Ollama has stored no model of this name"),
        (["nowhere.gguf"], "model: nowhere.gguf is not a file"),
        (["--api-key", " "], "api_keys"),
        (
            ["--cors-origin", "http://localhost:3000/"],
            "cors_origins: found 'http://localhost:3000/'",
        ),
        (["--cors-origin", "localhost"], "cors_origins: found 'localhost', wanted '*' or origins"),
        (["--port", "0", "--sessions-dir", f"{__file__}/in"], "sessions_dir: "),
        (["--chat-template", "chatlm"], "found 'chatlm', wanted the text of a template or one of"),
        (["--chat-template", "{{ x"], "chat template"),
        (["--chat-template-file", "/nowhere"], "/nowhere: No such file or directory"),
        (["--max-queue", "0"], "max_queue"),
        (["--parallel", "0"], "max_sequences"),
    ],
)
def test_what_cannot_be_honoured_is_refused_before_anything_starts(capsys, args, why):
    assert main(["serve", *args]) == 1
    assert why in capsys.readouterr().err


def test_requests_speculate_as_the_command_says(cases, capsys):
    draft = str(cases / "stories260K" / "stories260K-q8_0.gguf")
    command_line = parser()
    for given, wanted in ((draft, draft), ("off", False), ("mtp", "mtp")):
        options = _engine(command_line.parse_args(["serve", "--speculative", given]))
        assert options["speculative"] == wanted
    assert "speculative" not in _engine(command_line.parse_args(["serve"]))
    with pytest.raises(SystemExit):
        main(["serve", "--draft-max", "3"])
    assert "as many candidates are run as pay" in capsys.readouterr().err


def damaged(path):
    """The embedded model without its last tensors."""
    whole = oxillama.embedded_path().read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    return path


def test_a_given_model_that_cannot_be_loaded_ends_it_with_one_error(tmp_path):
    process, _ = start(str(damaged(tmp_path / "bad.gguf")))
    try:
        assert process.wait(30) == 1
        *events, last = process.stderr.read().splitlines()
        failed, stopped = [json.loads(line) for line in events][-2:]
        assert (failed["event"], stopped["event"]) == ("model_failed", "stopped")
        assert last == f"oxillama: the model cannot be loaded: {failed['error']}"
        assert failed["error"].startswith("bad.gguf: tensor ")
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def test_a_folder_is_served_whatever_cannot_be_loaded_of_it(tmp_path):
    bad = damaged(tmp_path / "only.gguf")
    process, url = start("--models-dir", str(tmp_path))
    try:
        with pytest.raises(urllib.error.HTTPError, match="500"):
            ask(f"{url}/v1/completions", {"prompt": "a"})
        bad.write_bytes(oxillama.embedded_path().read_bytes())
        made = ask(f"{url}/v1/completions", {"prompt": "a", "max_tokens": 1})
        assert made["model"] == "only"
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def test_help_shows_the_limits_of_server_config(capsys):
    config = ServerConfig()
    assert {name: default for name, default, _ in LIMITS} == {
        name: getattr(config, name.replace("-", "_")) for name, _, _ in LIMITS
    }
    with pytest.raises(SystemExit):
        main(["serve", "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert "largest body (default: 8388608)" in shown
    assert "seconds for a request's head (default: 15)" in shown


@pytest.mark.parametrize("package", ["starlette", "uvicorn"])
def test_a_package_that_is_missing_is_named_once(package):
    lacking = f"import sys; sys.modules[{package!r}] = None; "
    program = lacking + "from oxillama.cli import main; sys.exit(main(['serve']))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    told = f"oxillama: server: needs {package}, wanted pip install 'oxillama[server]'\n"
    assert (done.returncode, done.stderr) == (1, told)
