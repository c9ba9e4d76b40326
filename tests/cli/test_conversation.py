"""`oxillama chat`: a conversation that survives errors, and the lines that begin with a slash."""

import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from itertools import islice

import pytest

import oxillama
from oxillama.cli import conversation, main
from tests.cli.console import interruptible


@pytest.fixture
def asked(monkeypatch):
    """The messages of every reply that was asked for."""
    seen, original = [], oxillama.InferenceEngine.chat

    def chat(self, messages, **options):
        seen.append([dict(each) for each in messages])
        return original(self, messages, **options)

    monkeypatch.setattr(oxillama.InferenceEngine, "chat", chat)
    return seen


@pytest.fixture
def talk(monkeypatch, capsys):
    """Runs a talk over lines of input; exceptions among them are raised at the prompt."""

    def run(*lines, options=("-n", "24", "--temp", "0", "--no-timings")):
        left = iter(lines)

        def next_line(prompt=""):
            line = next(left, EOFError())
            if isinstance(line, BaseException):
                raise line
            return line

        monkeypatch.setattr("builtins.input", next_line)
        code = main(["chat", *map(str, options)])
        out, err = capsys.readouterr()
        assert code == 0
        return out, err, [*left]

    return run


def roles(messages):
    return [each["role"] for each in messages]


def test_each_message_is_answered_and_empty_lines_are_none(talk, asked):
    out, _, _ = talk("Hello!", "", "Where does Bruno live?")
    assert len(out.splitlines()) == 2
    assert [roles(each) for each in asked] == [["user"], ["user", "assistant", "user"]]


def test_calls_are_printed_and_the_next_lines_are_their_results(talk, asked, tmp_path):
    tools = tmp_path / "tools.json"
    where = {"properties": {"where": {"enum": ["here"]}}, "required": ["where"]}
    tools.write_text(json.dumps([{"name": "now", "parameters": where}]))
    options = ("--tools", tools, "--tool-choice", "now", "--tool-format", "hermes")
    options = (*options, "--no-parallel-tool-calls", "--temp", 0, "-n", 400)
    out, _, _ = talk("What time is it?", "noon", options=options)
    printed = [json.loads(line) for line in out.split("\n") if line]
    assert printed == [{"name": "now", "arguments": {"where": "here"}}] * 2
    assert roles(asked[1]) == ["user", "assistant", "tool"]
    assert asked[1][2]["content"] == "noon"


def test_a_list_of_tools_that_is_none_is_refused_before_the_talk(capsys, tmp_path):
    tools = tmp_path / "tools.json"
    for text in ("{", "{}"):
        tools.write_text(text)
        assert main(["chat", "--tools", str(tools)]) == 1
        assert "wanted a JSON list of tools" in capsys.readouterr().err
    tools.write_text("[" * 100_000)
    assert main(["chat", "--tools", str(tools)]) == 1
    assert capsys.readouterr().err.startswith(f"oxillama: {tools}: nested too deeply")
    tools.unlink()
    assert main(["chat", "--tools", str(tools)]) == 1
    told = f"oxillama: {tools}: No such file or directory, wanted a readable file\n"
    assert capsys.readouterr().err == told


def test_a_way_to_speculate_that_no_message_could_use_is_refused_before_the_talk(capsys):
    for wrong, told in (("mpt", "did you mean 'mtp'?"), ("mtp", "without layers that predict")):
        assert main(["chat", "--speculative", wrong]) == 1
        out, err = capsys.readouterr()
        assert told in err and not out and "conversation continues" not in err


def test_a_full_context_leaves_out_the_oldest_turns_and_says_so_once(talk, asked):
    lines = [f"Tell me of the fox number {at}, and of its friends." for at in range(8)]
    options = ("-c", 160, "-n", 40, "--temp", 0, "--no-timings", "-sys", "Be kind.")
    out, err, _ = talk(*lines, options=options)
    assert len(asked) == 8 and len(out.splitlines()) >= 8
    assert err.count("oldest turns are left out") == 1 and "oxillama:" not in err
    last = asked[-1]
    assert roles(last)[:2] == ["system", "user"] and last[-1]["content"] == lines[-1]
    assert 1 < len(last) < 16


def test_a_developers_message_is_the_system_message_of_a_talk(talk, asked, tmp_path):
    path = tmp_path / "talk.json"
    path.write_text(json.dumps({"messages": [{"role": "developer", "content": "Be kind."}]}))
    lines = [f"Tell me of the fox number {at}, and of its friends." for at in range(8)]
    options = ("-c", 160, "-n", 40, "--temp", 0, "--no-timings")
    out, err, _ = talk(f"/load {path}", *lines, "/system", "/system Hm.", "Go", options=options)
    assert "oldest turns are left out" in err and "Be kind." in out + err
    assert roles(asked[7])[:2] == ["developer", "user"]
    assert asked[8][0] == {"role": "system", "content": "Hm."} and roles(asked[8])[1] == "user"


def test_a_message_that_no_context_holds_is_refused_and_the_talk_goes_on(talk, asked):
    out, err, _ = talk("fox " * 400, "Hello!", options=("-c", 128, "-n", 8, "--no-timings"))
    assert "takes at most 127" in err and "the conversation continues" in err
    assert [each[-1]["content"] for each in asked] == ["Hello!"] and out.strip()


def test_a_reply_goes_on_over_the_end_of_the_context_where_it_may_shift(talk):
    options = ("-c", 64, "-n", 120, "--ignore-eos", "--temp", 0, "--seed", 1)
    _, err, _ = talk("Hello!", "Go on.", options=(*options, "--context-shift"))
    assert err.count("older half of it was forgotten") == 1
    assert err.count("reply 120 tokens") == 2
    _, err, _ = talk("Hello!", "Go on.", options=options)
    assert err.count("the reply ended with the context") == 1 and "reply 120 tokens" not in err


def test_bytes_that_are_no_text_are_replaced_and_the_talk_goes_on():
    command = [sys.executable, "-m", "oxillama", "chat", "-n", "8", "--temp", "0"]
    done = subprocess.run(
        [*command, "--no-timings"], input=b"caf\xe9 \xff\n/stats\nHello!\n", capture_output=True
    )
    err = done.stderr.decode()
    assert done.returncode == 0 and len(done.stdout.splitlines()) == 2
    assert err.count("are not UTF-8") == 1 and "messages: 2" in err


def test_ctrl_c_ends_a_reply_and_keeps_what_was_said(talk, asked, monkeypatch):
    stopped = []

    def reply(events, said):
        if not stopped:
            stopped.append(True)
            said.append("Once")
            raise KeyboardInterrupt
        if len(stopped) == 1:
            stopped.append(True)
            raise KeyboardInterrupt
        return conversation_reply(events, said=said)

    conversation_reply = conversation.reply
    monkeypatch.setattr(conversation, "reply", reply)
    _, err, _ = talk("One", "/stats", "Two", "Three", "/stats")
    contents = [each["content"] for each in asked[-1]]
    assert contents == ["One", "Once", "Three"]  # nothing was said to "Two"
    # what was said before a stop counts
    assert all(len(line) <= 80 for line in err.splitlines())
    assert "messages: 2," in err and "replies: 1," in err and "replies: 2," in err
    assert "; cancelled]" in err


def test_ctrl_c_at_the_prompt_leaves_the_second_time(talk, asked):
    _, _, left = talk(KeyboardInterrupt(), "Hello!", KeyboardInterrupt(), KeyboardInterrupt(), "no")
    assert left == ["no"] and [each[-1]["content"] for each in asked] == ["Hello!"]


def test_ctrl_c_drops_a_message_that_is_begun_and_does_not_leave(talk, asked):
    stop = KeyboardInterrupt
    talk(stop(), "one \\", stop(), stop(), '"""two', stop(), stop(), "Hello!", stop(), stop(), "no")
    assert [each[-1]["content"] for each in asked] == ["Hello!"]


def test_messages_may_have_several_lines(talk, asked):
    talk("one \\", "two", '"""three', "", 'four"""', '"""', "five", '"""')
    said = [each[-1]["content"] for each in asked]
    assert said == ["one \ntwo", "three\n\nfour", "five"]


def test_commands_change_what_is_asked(talk, asked, tmp_path):
    path = tmp_path / "talk file.json"
    lines = ["/system Be brief.", "Hello!", "/regen", f'/save "{path}"', "/undo", "Again", "/clear"]
    out, err, _ = talk(*lines, "New", f'/load "{path}"', "More", "/exit", "never")
    first, again, second, third, fourth = asked
    assert first == again and first[0] == {"role": "system", "content": "Be brief."}
    assert [each["content"] for each in second] == ["Be brief.", "Again"]
    assert [each["content"] for each in third] == ["Be brief.", "New"]
    assert [each["content"] for each in fourth][:2] == ["Be brief.", "Hello!"]
    assert fourth[-1]["content"] == "More" and roles(fourth)[2] == "assistant"
    assert json.loads(path.read_text())["options"]["max_tokens"] == 24
    assert len(out.splitlines()) == 5


def test_a_file_that_cannot_be_written_or_read_is_named(talk, tmp_path):
    path = tmp_path / "nowhere/talk.json"
    _, err, _ = talk(f"/save {path}", f"/save {tmp_path}", f"/load {path}")
    assert f"[/save: {path}: there is no such folder]\n" in err
    assert f"[/save: {tmp_path}: a folder, wanted a file]\n" in err
    assert f"[/load: {path}: No such file or directory, wanted a readable file]\n" in err
    assert "Errno" not in err


def test_set_checks_what_it_changes(talk):
    _, err, _ = talk(
        "/set top_p 2",
        "/set temp 0.5",
        "/set topk 3",
        "/set --repeat-penalty 1.2",
        "/set",
        "/set temperature",
        "/set top_k",
        "/set topp",
        "/set n 4",
        "/hlep",
        "/help",
        "/load nowhere.json",
    )
    lines = err.splitlines()
    assert lines[0].startswith("[/set: top_p: found 2, wanted")
    assert lines[1] == "[temperature = 0.5]" and "did you mean top_k?" in lines[2]
    assert lines[3] == "[repetition_penalty = 1.2]" and "  temperature = 0.5" in lines
    assert "[temperature: default]" in lines and "[top_k: default]" in lines
    assert "did you mean top_p?" in err and "a conversation has one reply" in err
    assert "did you mean /help?" in err and "nowhere.json" in lines[-1]
    names = ("save", "load", "system", "regen", "undo", "stats", "clear", "exit")
    assert all(f"  /{name} " in err for name in names)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("/set parameter temperature 0.5", "[temperature = 0.5]"),
        ("/set parameter num_ctx 4096", "-c is the length of the context]"),
        ("/set system You are Mario", "; /system TEXT sets it]"),
        ("/set verbose", "; /stats shows the timings"),
        ("/set nothink", "; --chat-template-kwargs sets variables of the template]"),
        ("/set format json", '; /set json_schema {"type": "object"} asks for JSON'),
        ("/set sampling_fields {}", "[/set: sampling_fields: is not an option of a reply"),
        ("/set foo 3", "[/set: foo: is not an option of a reply, wanted one of allowed_tokens, "),
        ("/show info", "`oxillama info` what a file holds. A message that begins"),
        ("/retry", "[nothing to ask again]"),
    ],
)
def test_what_other_chats_write_is_done_or_told_what_does_it_here(talk, line, said):
    _, err, _ = talk(line)
    assert said in err and "processors" not in err


def test_log_probabilities_are_shown_token_by_token(talk):
    out, err, _ = talk("/set logprobs 2", "Hello!", "/set logprobs 0", "/regen", "/set logprobs")
    with oxillama.load() as engine:
        done = engine.chat(
            [{"role": "user", "content": "Hello!"}], logprobs=2, max_tokens=24, temperature=0
        )
        text = [engine.tokenizer.token_bytes(each.token).decode() for each in done.logprobs]
    lines = [line for line in err.splitlines() if line.startswith("  ")]
    count = len(done.logprobs)
    assert count > 1 and len(lines) == 2 * count
    for at, each in enumerate(done.logprobs):
        head = f"  {text[at]!r} {each.raw:z.3f}"
        assert lines[at].startswith(f"{head}  (") and lines[count + at] == head
        assert all(f" {value:z.3f}" in lines[at] for value in each.raw_values)
    assert " 0.000" in err and "-0.000" not in err
    assert out.splitlines() == [done.text, done.text]


def test_log_probabilities_of_a_reply_that_is_stopped_are_shown(talk, monkeypatch):
    def stopped(stream, *, said):
        said += [event.text for event in islice(stream, 2)]
        raise KeyboardInterrupt

    monkeypatch.setattr(conversation, "reply", stopped)
    _, err, _ = talk("/set logprobs 1", "Hello!")
    assert re.search(r"^  'Hello' -0\.\d{3}  \('Hello' -0\.\d{3}\)$", err, re.MULTILINE)


def test_options_that_no_conversation_honours_are_refused(talk, tmp_path):
    path = tmp_path / "talk.json"
    for name, value, words in (
        ("n", 2, "a conversation has one reply at a time"),
        ("best_of", 3, "a conversation has one reply at a time"),
        ("prompt_logprobs", 1, "a conversation shows the tokens of its replies alone"),
    ):
        path.write_text(json.dumps({"messages": [], "options": {name: value}}))
        _, err, _ = talk(f"/set {name} {value}", f"/load {path}", "/set")
        lines = err.splitlines()
        assert len(lines) == 5 and f"  {name} = {value}" not in lines
        for line, command in zip(lines, ("set", "load")):
            assert line.startswith(f"[/{command}: {name}: found {value}, wanted ")
            assert words in line


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("a letter", "found no JSON (Expecting value: line 1 column 1 (char 0)), wanted a conv"),
        ("[" * 100_000, "found no JSON (nested too deeply"),
        ('{"options": {}}', "found no list of messages, wanted a conversation]"),
        ('[{"role": "user"}]', "messages[0].content: found nothing, wanted text or a list of"),
        ('[{"role": "user", "content": 5}]', "messages[0].content: found int, wanted text or"),
        (
            '{"messages": [{"role": "alien", "content": "x"}]}',
            "messages[0].role: found 'alien', wanted one of system, developer, user, assistant, ",
        ),
    ],
)
def test_a_file_that_is_no_conversation_is_refused_and_changes_nothing(
    talk, asked, tmp_path, text, error
):
    path = tmp_path / "talk.json"
    path.write_text(text)
    _, err, _ = talk("One", f"/load {path}", "Two")
    assert f"[/load: {error}" in err.replace(f"{path}: ", "")
    assert [each["content"] for each in asked[-1][::2]] == ["One", "Two"]


def test_a_message_that_begins_with_a_slash_has_two(talk, asked):
    talk("//etc/hosts", "/etc/hosts")
    assert [each[-1]["content"] for each in asked] == ["/etc/hosts"]


def test_variables_reach_the_template(talk, asked, capsys):
    template = "{{ messages[-1].content if twice else '' }}{{ messages[-1].content }}"
    options = ("--chat-template", template, "-n", "1")
    given = (*options, "--chat-template-kwargs", '{"twice": true}')
    counts = []
    for each in (options, given):
        _, err, _ = talk("Hello!", options=each)
        counts.append(int(re.search(r"prompt (\d+) tokens", err)[1]))
    assert counts[1] > counts[0]
    for text, words in (
        ('{"thrice": true}', "thrice: found True, but the model's chat template reads no such"),
        ("[1]", "--chat-template-kwargs: found '[1]', wanted an object in JSON"),
        ("{", "wanted an object in JSON"),
    ):
        assert main(["chat", *options, "--chat-template-kwargs", text]) == 1
        assert words in capsys.readouterr().err
    assert len(asked) == 2


def test_a_file_without_a_template_takes_a_built_in_one(capsys, tmp_path, talk):
    whole = oxillama.embedded_path().read_bytes()
    key = b"tokenizer.chat_template"
    (tmp_path / "bare.gguf").write_bytes(whole.replace(key, b"tokenizer.another_thing"))
    model = str(tmp_path / "bare.gguf")
    assert main(["chat", model]) == 1 and "tokenizer.chat_template" in capsys.readouterr().err
    out, _, _ = talk("Hello!", options=(model, "--chat-template", "chatml", "-n", 8))
    assert out.strip()
    assert main(["chat", model, "--chat-template", "chatlm"]) == 1
    assert "wanted the text of a template or one of chatml" in capsys.readouterr().err


def test_ctrl_c_stops_a_reply_to_what_is_piped_in_and_the_talk_goes_on():
    command = [sys.executable, "-m", "oxillama", "chat", "--temp", "0", "--no-timings"]
    endless = ("-n", "1000000", "--ignore-eos", "--context-shift")
    process = interruptible([*command, *endless], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        process.stdin.write(b"Hello!\n")
        process.stdin.flush()
        assert process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        assert process.stderr.readline().rstrip() == b"[stopped; what was said stays]"
        process.stdin.write(b"/stats\n/exit\n")
        process.stdin.flush()
        assert b"replies: 1," in process.stderr.read()
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.communicate()


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="no terminals of one's own here")
def test_at_a_terminal_ctrl_c_stops_a_reply_and_two_leave(tmp_path):
    import pty

    parent, child = pty.openpty()
    command = [sys.executable, "-m", "oxillama", "chat", "--ignore-eos", "--context-shift"]
    environment = {**os.environ, "OXILLAMA_HISTORY": str(tmp_path / "history"), "TERM": "dumb"}

    def terminal():
        os.setsid()
        import fcntl
        import termios

        signal.signal(signal.SIGINT, signal.SIG_DFL)  # ignored in a shell's background jobs
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    process = subprocess.Popen(
        command, stdin=child, stdout=child, stderr=child, env=environment, preexec_fn=terminal
    )
    os.close(child)
    seen = b""

    def until(text, seconds=60.0):
        """Read up to this text; False where it does not come."""
        nonlocal seen
        end = time.monotonic() + seconds
        while text not in seen:
            left = end - time.monotonic()
            if left < 0 or not select.select([parent], [], [], left)[0]:
                return False
            try:
                seen += os.read(parent, 1 << 16)
            except OSError:  # the other side has closed
                return False
        seen = seen.split(text, 1)[1]
        return True

    def interrupted(done):
        """Press Ctrl-C till it is seen: CPython's readline misses a signal that comes after its
        prompt is written and before it waits for a key."""
        for _ in range(6):
            os.write(parent, b"\x03")
            if done():
                return True
        return False

    def ended():
        until(b"nothing of this kind", seconds=5.0)  # what is left to read
        with suppress(subprocess.TimeoutExpired):
            process.wait(5)
        return process.returncode is not None

    try:
        assert until(b"> "), seen
        os.write(parent, b"Hello!\n")
        assert until(b"Hello!"), seen
        assert until(b"a"), seen  # the reply has begun
        assert interrupted(lambda: until(b"[stopped", seconds=5.0)), seen
        assert until(b"> "), seen
        os.write(parent, b"/stats\n")
        assert until(b"replies: "), seen
        assert until(b"> "), seen
        assert interrupted(lambda: until(b"again leaves]", seconds=5.0)), seen
        assert until(b"> "), seen
        assert interrupted(ended), seen
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
        os.close(parent)
