"""Options of everything that generates, and how a command line is read."""

import json
import re
from dataclasses import fields

import pytest

import oxillama
from oxillama.cli import generation, main, parser
from oxillama.cli.streams import bracketed, timed
from oxillama.completion import SpecStats

OPTIONS = parser()._subparsers._group_actions[0].choices["run"]._option_string_actions
# llama.cpp's names of what there is here, and the field or argument each of them sets
LLAMA_CPP = {
    "-m": "named",
    "-hf": "named",
    "--hf-repo": "named",
    "-p": "prompt",
    "-f": "file",
    "-sys": "system",
    "-n": "max_tokens",
    "--predict": "max_tokens",
    "-c": "context",
    "--ctx-size": "context",
    "-t": "threads",
    "-s": "seed",
    "-r": "stop",
    "-l": "logit_bias",
    "-j": "json_schema",
    "-jf": "json_schema_file",
    "--temp": "temperature",
    "--typical": "typical_p",
    "--top-nsigma": "top_n_sigma",
    "--repeat-penalty": "repetition_penalty",
    "--repeat-last-n": "repetition_window",
    "--dry-sequence-breaker": "dry_sequence_breakers",
    "--dynatemp-exp": "dynatemp_exponent",
    "--mirostat-lr": "mirostat_eta",
    "--mirostat-ent": "mirostat_tau",
    "--keep": "keep",
    "--no-context-shift": "context_shift",
    "--grammar": "grammar",
    "--chat-template": "chat_template",
}


def printed(capsys, *arguments):
    code = main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    return code, out, err


def options(*given):
    return generation.generation(parser().parse_args(["run", *map(str, given)]))


def refused(capsys, *arguments):
    """The line of a command line that cannot be read."""
    with pytest.raises(SystemExit) as left:
        main([str(argument) for argument in arguments])
    err = capsys.readouterr().err
    assert left.value.code == 2 and err.count("\n") == 1
    return err


def test_every_field_of_a_sampler_has_an_option_of_its_name():
    reached = {action.dest for action in OPTIONS.values()}
    assert not {field.name for field in fields(oxillama.SamplerConfig)} - reached
    for field in fields(oxillama.SamplerConfig):
        if field.name not in ("dry_sequence_breakers",):
            name = "--" + field.name.replace("_", "-")
            assert OPTIONS[name].dest == field.name


@pytest.mark.parametrize(("name", "dest"), LLAMA_CPP.items())
def test_llama_cpp_names_mean_what_they_mean_there(name, dest):
    assert OPTIONS[name].dest == dest


@pytest.mark.parametrize(
    "given",
    ["-ngl 99", "-fa", "-fa on", "-tb 4", "-ctk q8_0", "-cnv", "-no-cnv", "-st", "-sm none",
     "-np 4", "-mg 0", "-hff x", "-pHello"],
)  # fmt: skip
def test_letters_after_a_letter_are_another_option_and_no_value(capsys, given):
    name = given.split()[0]
    error = refused(capsys, "run", *given.split())
    assert re.fullmatch(rf"oxillama run: {name}: is not an option(; .*)? \(.* --help\)\n", error)


def test_numbers_may_follow_a_letter_directly():
    given = parser().parse_args(
        ["run", "-n5", "-t2", "-c=9", "-s-1", "-l", "5-1", "-p", "-a is -b"]
    )
    assert (given.max_tokens, given.threads, given.context, given.seed) == (5, 2, 9, -1)
    assert given.prompt == "-a is -b"
    assert parser().parse_args(["run", "--", "-ngl"]).model == "-ngl"


def test_an_option_that_is_left_out_changes_nothing():
    assert options() == {"max_tokens": None, "stop": []}


def test_options_reach_the_sampler():
    given = options(
        "--temp", 0.5, "-l", "15+1.5", "-l", "16-inf", "-l", "17+1e-3",
        "--samplers", "top_k;typ_p,temperature", "--top-nsigma", -1,
        "--dry-sequence-breaker", "a", "--banned-tokens", "4,5",
        "--speculative", "off", "--context-shift", "--keep", 3,
    )  # fmt: skip
    wanted = oxillama.Options.of(given)
    config = wanted.sampling(oxillama.SamplerConfig())
    assert config.temperature == 0.5
    assert config.logit_bias == {15: 1.5, 16: -float("inf"), 17: 1e-3}
    assert config.samplers == ("top_k", "typical", "temperature") and config.top_n_sigma is None
    assert config.dry_sequence_breakers == ("a",) and config.banned_tokens == (4, 5)
    assert wanted.speculative is False and wanted.context_shift and wanted.keep == 3


def test_a_schema_is_the_same_as_text_and_as_a_file(tmp_path):
    text = '{"type": "boolean"}'
    path = tmp_path / "schema.json"
    path.write_text(text)
    ways = [("--json-schema", text), ("-j", path), ("-j", f"@{path}"), ("-jf", path)]
    assert [options(*way)["json_schema"] for way in ways] == [text] * 4


def test_run_follows_a_schema_a_grammar_and_an_expression(capsys, tmp_path):
    path = tmp_path / "g.gbnf"
    path.write_text('root ::= "fox" | "owl"')
    base = ("run", "-n", 20, "--no-display-prompt", "--no-timings")
    assert printed(capsys, *base, "-j", '{"enum": [17]}')[1] == "17\n"
    assert printed(capsys, *base, "--grammar-file", path)[1] in ("fox\n", "owl\n")
    assert printed(capsys, *base, "--regex", "[0-9]{3}")[1].strip().isdecimal()


def test_a_prompt_comes_from_a_file_and_a_model_from_m(capsys, tmp_path):
    path = tmp_path / "prompt.txt"
    path.write_text("Once upon a time\n")
    base = ("-n", 8, "--temp", 0, "--no-timings")
    told = printed(capsys, "run", "-p", "Once upon a time", *base)
    model = oxillama.embedded_path()
    assert printed(capsys, "run", "-m", model, "-f", path, *base) == told
    assert "wanted one model; -p gives a prompt" in refused(capsys, "run", "-m", model, "Why?")
    for command in ("run", "chat", "bench", "doctor", "serve", "info"):
        assert parser().parse_args([command, "-m", "a.gguf"]).model == "a.gguf"


def test_a_system_message_makes_a_chat_of_a_run(capsys):
    base = ("-n", 8, "--temp", 0, "--no-timings")
    code, out, _ = printed(capsys, "run", "-sys", "Be kind.", "-p", "Hello!", *base)
    messages = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Hello!"},
    ]
    with oxillama.load() as engine:
        assert out == engine.chat(messages, max_tokens=8, temperature=0).text + "\n"
    assert code == 0


def test_timings_come_beside_the_text(capsys):
    code, out, err = printed(capsys, "run", "-n", 8, "--temp", 0, "--seed", 3)
    assert code == 0 and "tokens/s" not in out
    told = " ".join(err.split())
    assert "[prompt 5 tokens" in told and "reply 8 tokens" in told and "seed 3; length]" in told
    assert all(len(line) <= 80 for line in err.splitlines())


def test_bracketed_lines_end_between_parts_within_80_columns():
    assert bracketed(["one", "two"]) == "[one; two]"
    parts = ["a" * 38, "b" * 37, "c", "d" * 100, "e"]
    assert bracketed(parts) == f"[{parts[0]}; {parts[1]};\n c;\n {parts[3]};\n e]"
    # the bracket at the end counts
    assert bracketed(["a" * 78]) == f"[{'a' * 78}]"
    assert bracketed(["a" * 38, "b" * 38]) == f"[{'a' * 38}; {'b' * 38}]"
    assert bracketed(["a" * 38, "b" * 39]) == f"[{'a' * 38};\n {'b' * 39}]"


def test_timings_fit_a_terminal_of_80_columns():
    done = oxillama.Completion(
        "",
        (),
        "length",
        oxillama.Usage(100_000, 2000, cached_tokens=99_000),
        seed=2**64 - 1,
        speculation=SpecStats(accepted=1000, rejected=2000),
        timings=oxillama.Timings(100.0, 1.0, 3.0, 12345.6, 2345.6),
    )
    told = timed(done)
    assert all(len(line) <= 80 for line in told.splitlines())
    assert " ".join(told.split()) == (
        "[prompt 100000 tokens (99000 cached), 12,345.6 tokens/s; reply 2000 tokens, 2,345.6 "
        "tokens/s; first token 3.000 s; 1000 of 3000 candidates accepted; total 100.00 s; seed "
        "18446744073709551615; length]"
    )


def test_without_a_command_the_help_is_shown(capsys):
    code, out, err = printed(capsys)
    assert code == 0 and out.startswith("usage: oxillama") and "chat" in out and not err


@pytest.mark.parametrize(
    ("arguments", "words"),
    (
        (("run", "--tmep", "1"), "--tmep: is not an option; did you mean --temp?"),
        (("run", "--temperatur=1"), "did you mean --temperature?"),
        (("run", "--max-token", "1"), "did you mean --max-tokens?"),  # no abbreviations
        (("rnu",), "did you mean run?"),
        (("run", "--temp", "warm"), "--temp/--temperature: found 'warm', wanted a number"),
        (("run", "-n", "1.5"), "found '1.5', wanted a whole number"),
        (("run", "--kv-type", "f17"), "did you mean f16?"),
        # as Ollama's command line takes it
        (("run", "a", "Why?"), "found the argument 'Why?' too many; -p gives a prompt ("),
        (("info", "a.gguf", "b.gguf"), "found the argument 'b.gguf' too many ("),
        (("show", "a"), "found 'show', wanted one of run,"),
        (("show", "a"), "did you mean info?"),
        (("help",), "did you mean --help?"),
        (("run", "-p", "a", "-f", "b"), "not allowed with argument"),
        (("bench", "--top-k", "3"), "--top-k: is not an option"),
        (("run", "-ngl", "99"), "-ngl: is not an option; everything runs on the CPU (ox"),
        (("serve", "--n-gpu-layers=99"), "--n-gpu-layers: is not an option; everything runs on"),
        (("serve", "--n_gpu_layers", "9"), "--n_gpu_layers: is not an option; everything runs on"),
        (("serve", "--n_ctx", "9"), "--n_ctx: is not an option; --context is the length of the"),
        (("serve", "--mirostat", "2"), "--mirostat: is not an option; oxillama run and chat have"),
        (("serve", "--prompt", "a"), "--prompt: is not an option; oxillama run and chat have it"),
        (("serve", "--enable-log-requests"), "; requests are logged, but for --no-log-requests"),
        (("run", "--hf-repo-draft", "a/b"), "; --speculative takes a draft model, which runs as"),
        (("run", "--no-op-offload"), "--no-op-offload: is not an option; everything runs on the"),
        (("run", "--rope-theta", "9"), "; --rope-freq-base is that number (oxillama run"),
        (("info", "--rope-theta", "9"), "--rope-theta: is not an option (oxillama info"),
        (("run", "--mlock"), "--mlock: is not an option; weights are mapped or packed"),
        (("serve", "--metrics"), "--metrics: is not an option; oxillama serve always has these"),
        (("serve", "--keep", "3"), "--keep: is not an option; oxillama run and chat have it; to a"),
        (("serve", "--top-k", "3"), "--top-k: is not an option; oxillama run and chat have it"),
        (("serve", "--enable-lora"), "--enable-lora: is not an option; --lora FILE[:SCALE] loads"),
        (("convert", "a", "--outfile", "b"), "--outfile: is not an option; OUT.gguf is given aft"),
        (("perplexity", "-f", "a"), "-f: is not an option; TEXT is the file, without an option"),
        (("rm", "-f", "a"), "-f: is not an option (oxillama rm --help)"),
        (("imatrix", "a", "-o", "b", "--chunks", "3"), "--chunks: is not an option; --limit is"),
        (("bench", "-o", "json"), "-o: is not an option; --json prints one JSON object"),
        (("info", "--template"), "--template: is not an option; --metadata shows every key"),
        (("run", "--template", "x"), "--template: is not an option; did you mean --chat-templ"),
        (("quantize", "a", "b", "Q8_0", "--keep-split"), "--keep-split: is not an option; one"),
        (("run", "-e"), r"-e: is not an option; texts are taken as they are written: \n is no"),
        # nothing is suggested that only has letters in common
        (("serve", "--reload"), "--reload: is not an option (oxillama serve --help)"),
        (("serve", "--path", "x"), "--path: is not an option (oxillama serve --help)"),
        (("serve", "--cors", "x"), "--cors: is not an option; did you mean --cors-origin?"),
        (("run", "--repeat_penalty", "1"), "did you mean --repeat-penalty?"),
        (("ls",), "did you mean list?"),
        (("ps",), "serve; /api/ps of a server lists the models that it has in memory (oxillama"),
        (("create", "x"), "serve; a GGUF file or a Hugging Face folder is a model, and options"),
        (("run", "--kv-type", "ps"), "found 'ps', wanted one of f16, f32, q8_0, q4_0 (oxillama"),
        (("chat", "-b", "512"), "-b: is not an option; the size of a step is measured"),
    ),
)
def test_what_cannot_be_read_is_one_line_with_what_was_meant(capsys, arguments, words):
    assert words in refused(capsys, *arguments)


@pytest.mark.parametrize(
    ("arguments", "words"),
    (
        (("-l", "x+1"), "--logit-bias: found 'x+1', wanted TOKEN+BIAS"),
        (("-l", "15043"), "--logit-bias: found '15043', wanted TOKEN+BIAS"),
        (("--samplers", "temprature"), "did you mean temperature?"),
        (("--grammar", "root ::= [a]", "--regex", "a"), "--regex: found together with --grammar"),
        (("--keep", "3"), "keep: found 3 without context_shift"),
        (("--chat-template", "chatml"), "found without a system message"),
        (("--chat-template-kwargs", "{}"), "--chat-template-kwargs: found without a system mess"),
        (("-sys", "a", "--chat-template-kwargs", '{"nope": 1}'), "template reads no such variable"),
        (("-f", "nowhere.txt"), "nowhere.txt: No such file"),
        (("--top-p", "3"), "top_p: found 3.0"),
        (("-j", "nowhere.json"), "nowhere.json: No such file"),
    ),
)
def test_what_cannot_be_honoured_is_one_line(capsys, arguments, words):
    code, out, err = printed(capsys, "run", *arguments)
    assert code == 1 and not out and err.count("\n") == 1 and words in err


def test_bench_tells_what_it_is_at(capsys):
    from oxillama.cli.bench import measure

    told = []
    with oxillama.load(num_threads=1) as engine:
        measure(engine, prompt=4, generate=2, depth=0, batch=1, runs=2, progress=told.append)
    runs = ["warming up", "run 1 of 2", "run 2 of 2"]
    assert told == [
        *(f"prompt: {run}" for run in runs),
        "filling the context",
        *(f"generation: {run}" for run in runs),
        "",
    ]


def test_lists_of_ids_are_read():
    assert options("--stop-token-ids", "4,5")["stop_token_ids"] == [4, 5]
    assert json.dumps(options("--allowed-tokens", "7")["allowed_tokens"]) == "[7]"
