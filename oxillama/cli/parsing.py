"""The parser of the command line: options are never abbreviated, and what is wrong is one line with
the name that was probably meant.
"""

from __future__ import annotations

import argparse
import difflib
import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

_CHOICE = re.compile(r"^(?:argument )?(.*?): invalid choice: '?(.*?)'? \(choose from (.*)\)$")
_NUMBER = re.compile(r"^-\d|^-\.\d")
# more letters than a short option has, as in -ngl; what has a space is a value
_SHORT = re.compile(r"-[A-Za-z][^\d=.+-][^ ]*")
_CPU = "everything runs on the CPU"
_ATTENTION = "attention is computed in one way alone"
_MAPPED = "weights are mapped or packed as the file needs it, --offload leaves them in the file"
_CANDIDATES = "as many candidates are run as pay, by measured times"
_SPECULATION = "--speculative takes mtp, lookup or a draft model"
_ALIAS = "--alias is the model's name to clients"
_ALWAYS = "oxillama serve always has these routes"
_TLS = "a proxy before the server speaks TLS"
_CHUNKS = "the size of a step is measured; SchedulerConfig of the Python API bounds it"
_LORAS = "--lora FILE[:SCALE] loads an adapter, named by its file; any rank and number will do"
_PREFIXES = "common beginnings of prompts are always cached"
_ONE_PROCESS = "everything runs in one process"
_FILE = "OWNER/NAME:QUANT names one of a repository's files"
_ESCAPES = "texts are taken as they are written: \\n is no line break, which $'\\n' of a shell is"
_QUANTISED = "weights have the types of the file, oxillama quantize writes another"
_VARIABLES = "--chat-template-kwargs of run and chat sets variables of the template"
_TEXT_FILE = "TEXT is the file, without an option before it"
_METADATA = "--metadata shows every key of the file"
_NO_LOG = "a command prints its output and timings alone, which --no-timings leaves out"
_CORES = "--threads is the number of threads; taskset and numactl of the system choose cores"
_TENSOR_TYPE = "--tensor-type REGEX=TYPE names tensors and their format"
_LAID_OUT = "one file is written"
_REQUESTED = "oxillama run and chat have it; to a server, each request says it"
_IMAGES = "--image-folder is the folder whose images requests may name"
_ONE_WAY = "constraints are enforced in one way alone"
_STEPS = "the steps of a model are made once, when it is loaded"
_PAGES = "keys and values share pages, which are kept and freed as they are needed"
_DRAFT = "--speculative takes a draft model, which runs as its target does"
_HUB = "models come from the Hugging Face hub, or from files that are here"
_HUB_FOLDER = "HF_HOME of the environment is the folder for what the hub gives"
_HUB_TOKEN = "HF_TOKEN of the environment is sent to the hub"
_REVISION = "the newest revision is fetched"
_VOCABULARY = "the vocabulary is the file's"
_KEYS = "the keys of a file are as they are, but for --rope-... and --yarn-..."
_LOGGED = "timings follow each reply, a server logs each request; there is no more to say"
_STDERR = "the log goes to standard error"
_DRAWN = "the file says how tokens are drawn (general.sampling.*), and requests"
_POOLED = "vectors are pooled as the file says, or as a request does"
_STEERED = "control vectors are not applied, adapters are (--lora)"
_WRITTEN = "the chat template writes what stands around a message"
_SEVERAL = 'a message of several lines stands between two """, or has \\ at the ends of lines'
_FOLDERS = "--models-dir serves a folder, whose models are loaded when they are asked for"
# Options of llama.cpp's, vLLM's and Ollama's programs, and what stands for them here.
_ELSEWHERE = {
    **dict.fromkeys(
        (
            *("--temp", "--temperature", "--top-k", "--top-p", "--min-p", "--seed", "-s"),
            *("-n", "--n-predict", "--predict", "--max-tokens", "--repeat-penalty"),
            *("--presence-penalty", "--frequency-penalty", "--samplers", "--logit-bias"),
            *("--grammar", "--grammar-file", "--json-schema", "-j", "--ignore-eos", "--stop"),
            *("--context-shift", "--no-context-shift", "--keep"),
            *("--top-nsigma", "--top-n-sigma", "--typical", "--typical-p", "--repeat-last-n"),
            *("--xtc-probability", "--xtc-threshold", "--dynatemp-range", "--dynatemp-exp"),
            *("--dry-multiplier", "--dry-base", "--dry-allowed-length", "--dry-penalty-last-n"),
            *("--dry-sequence-breaker", "--mirostat", "--mirostat-ent", "--mirostat-lr"),
            *("--json-schema-file", "-jf", "--prompt", "-p", "--image", "--audio", "--system"),
            *("--system-prompt", "-sys", "--reverse-prompt", "-r"),
        ),
        _REQUESTED,
    ),
    **dict.fromkeys(
        (
            *("--pipeline-parallel-size", "-pp", "--swap-space", "--rpc", "--no-op-offload"),
            *("--no-host", "--fit", "-fit", "--fit-target", "-fitt", "--fit-ctx", "-fitc"),
            *("--mmproj-offload", "--no-mmproj-offload", "-cmoe", "--attention-backend"),
        ),
        _CPU,
    ),
    **dict.fromkeys(
        (
            *("--hf-repo-draft", "-hfd", "--ctx-size-draft", "-cd", "--threads-draft", "-td"),
            *("--n-gpu-layers-draft", "-ngld", "--device-draft", "-devd", "--cpu-moe-draft"),
            "--override-tensor-draft",
        ),
        _DRAFT,
    ),
    **dict.fromkeys(("--draft-p-min", "--draft-p-split"), _CANDIDATES),
    **dict.fromkeys(
        ("--cpu-range", "-Cr", "--cpu-strict", "--cpu-mask-batch", "-Cb", "--prio", "--poll"),
        _CORES,
    ),
    **dict.fromkeys(
        (
            *("--cache-ram", "-cram", "--kv-unified", "-kvu", "--ctx-checkpoints", "--swa-full"),
            *("--defrag-thold", "-dt", "--num-gpu-blocks-override"),
        ),
        _PAGES,
    ),
    **dict.fromkeys(("--guided-decoding-backend", "--structured-outputs-config"), _ONE_WAY),
    **dict.fromkeys(("--enforce-eager", "--compilation-config", "-O"), _STEPS),
    **dict.fromkeys(("--model-url", "-mu", "--mmproj-url", "--docker-repo", "-dr"), _HUB),
    **dict.fromkeys(("--hf-token", "-hft", "--token"), _HUB_TOKEN),
    **dict.fromkeys(("--download-dir", "--local-dir", "--cache-dir"), _HUB_FOLDER),
    **dict.fromkeys(("--revision", "--code-revision", "--tokenizer-revision"), _REVISION),
    **dict.fromkeys(("--tokenizer", "--tokenizer-mode", "--skip-tokenizer-init"), _VOCABULARY),
    **dict.fromkeys(("--override-kv", "--hf-overrides"), _KEYS),
    **dict.fromkeys(
        ("--verbose", "-v", "--verbosity", "-lv", "--log-level", "--uvicorn-log-level", "--perf"),
        _LOGGED,
    ),
    **dict.fromkeys(
        ("--log-file", "--log-colors", "--log-prefix", "--log-timestamps", "--logdir"), _STDERR
    ),
    **dict.fromkeys(("--generation-config", "--override-generation-config"), _DRAWN),
    **dict.fromkeys(("--pooling", "--pooler-config", "--override-pooler-config"), _POOLED),
    **dict.fromkeys(
        ("--control-vector", "--control-vector-scaled", "--control-vector-layer-range"), _STEERED
    ),
    **dict.fromkeys(
        ("--in-prefix", "--in-suffix", "--in-prefix-bos", "--chat-template-content-format"),
        _WRITTEN,
    ),
    **dict.fromkeys(("--multiline-input", "-mli"), _SEVERAL),
    **dict.fromkeys(("--models-preset", "--models-autoload", "--no-models-autoload"), _FOLDERS),
    **dict.fromkeys(
        ("--no-cache-prompt", "--no-enable-prefix-caching"),
        "a request with cache_prompt false uses no stored prefix",
    ),
    "--cache-prompt": _PREFIXES,
    "--config": "options are given on the command line alone",
    "--config-file": "options are given on the command line alone",
    "--data-parallel-size": _ONE_PROCESS,
    "--disable-log-stats": "/metrics counts, and logs nothing",
    "--enable-reasoning": "reasoning is read in the notation of the chat template",
    **dict.fromkeys(
        ("--image-min-tokens", "--image-max-tokens"), "an image has the size of the model's file"
    ),
    "--modelfile": "Modelfiles are not read, options take their place",
    "--no-cont-batching": "requests are always batched",
    "--no-jinja": "chat templates are always evaluated",
    "--nowordwrap": "lines are not wrapped",
    "--offline": "HF_HUB_OFFLINE=1 of the environment asks the hub for nothing",
    "--prompt-cache-all": "oxillama serve --sessions-dir saves sessions",
    "--scheduling-policy": "a request says its priority",
    "--threads-http": "connections need no threads",
    "--uds": "--host and --port are where a server listens",
    "--warmup": "nothing is run before the prompt",
    "--webui": "the chat page is always served",
    "-nocb": "requests are always batched",
    "-q": _QUANTISED,
    "-sc": _SPECULATION,
    "--api-server-count": _ONE_PROCESS,
    "--allowed-origins": "--cors-origin allows the pages of other sites",
    "--block-size": "the size of pages is fixed",
    "--cache-reuse": _PREFIXES,
    "--chat-template-kwargs": _REQUESTED,
    "--color": "nothing is coloured",
    "--cpu-mask": _CORES,
    "--cpu-moe": _CPU,
    "--cpu-offload-gb": _CPU,
    "--enable-chunked-prefill": "prompts are always evaluated in chunks",
    "--enable-lora": _LORAS,
    "--enable-prefix-caching": _PREFIXES,
    "--escape": _ESCAPES,
    "--format": "--json-schema constrains the text",
    "--hf-file": _FILE,
    "--keep-split": _LAID_OUT,
    "--keepalive": "a model is in memory as long as its command runs",
    "--kv-cache-dtype": "--kv-type sets that of keys and values",
    "--list-devices": _CPU,
    "--load-format": "a GGUF file or a Hugging Face folder is known by what it holds",
    "--lora-modules": _LORAS,
    "--lora-scaled": _LORAS,
    "--max-lora-rank": _LORAS,
    "--max-loras": _LORAS,
    "--max-num-batched-tokens": _CHUNKS,
    "--n-cpu-moe": _CPU,
    "--no-conversation": "oxillama run continues a text",
    "--no-escape": _ESCAPES,
    "--no-kv-offload": _CPU,
    "--no-slots": _ALWAYS,
    "--no-warmup": "nothing is run before the prompt",
    "--no-webui": "the chat page is always served",
    "--numa": _CORES,
    "--override-tensor": _CPU,
    "--prompt-cache": "oxillama serve --sessions-dir saves sessions, session.snapshot() in Python",
    "--props": _ALWAYS,
    "--quantization": _QUANTISED,
    "--reasoning": _VARIABLES,
    "--reasoning-format": "requests say it",
    "--reasoning-parser": "reasoning is read in the notation of the chat template",
    "--root-path": "a proxy removes the path, and the chat page works below it",
    "--single-turn": "oxillama run -sys answers one message",
    "--split-max-size": _LAID_OUT,
    "--split-max-tensors": _LAID_OUT,
    "--task": "the routes of a server are those that its model can answer",
    "--think": _VARIABLES,
    "--trust-remote-code": "code of a repository is never run",
    "--workers": _ONE_PROCESS,
    "-C": _CORES,
    "-e": _ESCAPES,
    "-hff": _FILE,
    "-ncmoe": _CPU,
    "-nkvo": _CPU,
    "-no-cnv": "oxillama run continues a text",
    "-ot": _CPU,
    "-st": "oxillama run -sys answers one message",
    "--batch-size": _CHUNKS,
    "--cache-type-k": "--kv-type sets that of keys and values",
    "--cache-type-v": "--kv-type sets that of keys and values",
    "--cont-batching": "requests are always batched",
    "--conversation": "oxillama chat has conversations",
    "--device": _CPU,
    "--draft": _CANDIDATES,
    "--draft-max": _CANDIDATES,
    "--draft-min": _CANDIDATES,
    "--draft-model": "--speculative takes a draft model",
    "--draft-n": _CANDIDATES,
    "--dtype": "weights have the types of the file, --kv-type sets that of keys and values",
    "--embedding": _ALWAYS,
    "--embeddings": _ALWAYS,
    "--enable-auto-tool-choice": "tools of requests are always taken",
    "--flash-attn": _ATTENTION,
    "--gpu-layers": _CPU,
    "--gpu-memory-utilization": _CPU,
    "--interactive": "oxillama chat has conversations",
    "--jinja": "chat templates are always evaluated",
    "--main-gpu": _CPU,
    "--max-model-len": "--context is the length of the context",
    "--max-num-seqs": "--parallel of oxillama serve bounds the requests at once",
    "--metrics": _ALWAYS,
    "--mlock": _MAPPED,
    "--model-draft": "--speculative takes a draft model",
    "--models-max": "--max-loaded bounds the models in memory",
    "--n-gpu-layers": _CPU,
    "--no-mmap": _MAPPED,
    "--reasoning-budget": "requests say how far the model thinks",
    "--reranking": _ALWAYS,
    "--served-model-name": _ALIAS,
    "--slot-save-path": "--sessions-dir is where named sessions are saved",
    "--slots": _ALWAYS,
    "--spec-type": _SPECULATION,
    "--speculative-config": _SPECULATION,
    "--split-mode": _CPU,
    "--ssl-cert-file": _TLS,
    "--ssl-certfile": _TLS,
    "--ssl-key-file": _TLS,
    "--ssl-keyfile": _TLS,
    "--tensor-parallel-size": _CPU,
    "--tensor-split": _CPU,
    "--threads-batch": "--threads counts for prompts too",
    "--tool-call-parser": "calls are read in the notation of the chat template",
    "--ubatch-size": _CHUNKS,
    "--verbose-prompt": "oxillama tokenize shows the tokens of a text",
    "-a": _ALIAS,
    "-b": _CHUNKS,
    "-cb": "requests are always batched",
    "-cnv": "oxillama chat has conversations",
    "-ctk": "--kv-type sets that of keys and values",
    "-ctv": "--kv-type sets that of keys and values",
    "-dev": _CPU,
    "-fa": _ATTENTION,
    "-i": "oxillama chat has conversations",
    "-md": "--speculative takes a draft model",
    "-mg": _CPU,
    "-ngl": _CPU,
    "-np": "--parallel of oxillama serve bounds the requests at once",
    "-sm": _CPU,
    "-tb": "--threads counts for prompts too",
    "-tp": _CPU,
    "-ts": _CPU,
    "-ub": _CHUNKS,
}

# the same, for commands that have the option named first: elsewhere the hint would be wrong
_ELSEWHERE_BESIDE = {
    "-o": ("--json", "--json prints one JSON object"),
    "--kl-divergence": ("--kl-base", "--kl-base compares with the predictions of another file"),
    "--kl-divergence-base": (
        "--kl-base",
        "--kl-base compares with predictions, --save-logits keeps them",
    ),
    "--chunks": ("--limit", "--limit is the most windows of the text"),
    "--license": ("--metadata", _METADATA),
    "--modelfile": ("--metadata", _METADATA),
    "--parameters": ("--metadata", _METADATA),
    "--template": ("--metadata", _METADATA),
    "--model-name": ("--name", "--name is general.name of the file"),
    "--ids": ("--no-special", "--json prints the ids as one array"),
    "--no-bos": ("--no-special", "--no-special adds no special tokens, and parses none"),
    "--stdin": ("--no-special", "a text that is not given is read from standard input"),
    "--log-disable": ("--no-timings", _NO_LOG),
    "--allow-requantize": ("--tensor-type", "quantised files are taken too"),
    "--leave-output-tensor": ("--tensor-type", _TENSOR_TYPE),
    "--output-tensor-type": ("--tensor-type", _TENSOR_TYPE),
    "--token-embedding-type": ("--tensor-type", _TENSOR_TYPE),
    "--outfile": ("--type", "OUT.gguf is given after FOLDER, without an option before it"),
    "--outtype": ("--type", "--type is the type of the weights"),
    "--allowed-headers": ("--cors-origin", "--cors-origin allows the pages of other sites"),
    "--allowed-local-media-path": ("--image-folder", _IMAGES),
    "--allowed-methods": ("--cors-origin", "--cors-origin allows the pages of other sites"),
    "--api-prefix": ("--port", "a proxy removes the path, and the chat page works below it"),
    "--chat-format": ("--chat-template", "--chat-template takes a template or its name"),
    "--clip-model-path": ("--mmproj", "--mmproj takes an encoder of images or audio"),
    "--enable-log-requests": (
        "--no-log-requests",
        "requests are logged, but for --no-log-requests",
    ),
    "--hf-model-repo-id": ("-hf", "-hf names a repository"),
    "--lora-init-without-apply": ("--lora", "--lora FILE:0 is for requests that name it"),
    "--media-path": ("--image-folder", _IMAGES),
    "--model-alias": ("--alias", _ALIAS),
    "--n-ctx": ("--context", "--context is the length of the context"),
    "--rope-theta": ("--rope-freq-base", "--rope-freq-base is that number"),
    "--sleep-idle-seconds": ("--max-loaded", "a request with keep_alive 0 unloads a model"),
    "--timeout": (
        "--write-timeout",
        "--idle-timeout, --body-timeout and --write-timeout are for connections, and a request "
        "has timeout",
    ),
    "--file": ("--window", _TEXT_FILE),
    "-f": ("--window", _TEXT_FILE),
}

# commands of other programs, and what does the same here
_COMMANDS = {
    "api": "serve",
    "complete": "run",
    "delete": "rm",
    "download": "pull",
    "generate": "run",
    "get": "pull",
    "help": "--help",
    "inspect": "info",
    "list-models": "list",
    "ls": "list",
    "models": "list",
    "remove": "rm",
    "server": "serve",
    "show": "info",
    "start": "serve",
    "version": "--version",
}
_VECTORS = "oxillama serve has routes for it, and Python"
# commands of other programs that are none here
_NO_COMMANDS = {
    "copy": "a model is a file, which can be copied",
    "cp": "a model is a file, which can be copied",
    "create": "a GGUF file or a Hugging Face folder is a model, and options replace a Modelfile",
    "embed": _VECTORS,
    "embedding": _VECTORS,
    "ps": "/api/ps of a server lists the models that it has in memory",
    "push": "nothing is uploaded",
    "login": _HUB_TOKEN,
    "signin": _HUB_TOKEN,
    "rerank": _VECTORS,
    "stop": "Ctrl-C ends a server, and a request with keep_alive 0 unloads a model of it",
}


class Parser(argparse.ArgumentParser):
    """`argparse.ArgumentParser` without abbreviations, whose errors are one line."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{**options, "allow_abbrev": False})
        self.suggest_on_error = False  # Python 3.15's own way of it, in words of its own
        self.register("action", None, _Once)
        self.register("action", "store", _Once)
        self.register("action", "parsers", _Commands)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Arguments as a namespace, and nothing else: an option that is not known is an error of
        the command that does not know it. -ngl is not -n with the value "gl": only what begins like
        a number may follow a letter directly.
        """
        if self._subparsers is None:
            args = sys.argv[1:] if args is None else list(args)
            options = args[: args.index("--")] if "--" in args else args
            for each in filter(_SHORT.fullmatch, options):
                name = each.partition("=")[0]
                if name not in self._option_string_actions:
                    self.error(_unknown(each, ()))
        found, rest = super().parse_known_args(args, namespace)
        if rest:
            self.error(_unknown(rest[0], self._option_string_actions))
        named = getattr(found, "named", None)
        if named is not None:  # -m, which is MODEL under another name
            if found.model is not None:
                hint = _prompt_hint(self._option_string_actions)
                self.error(f"-m: found {named!r} and {found.model!r}, wanted one model{hint}")
            found.model, found.named = named, None
        return found, []

    def error(self, message: str) -> NoReturn:
        """Print one line and exit with code 2."""
        choice = _CHOICE.match(message)
        if choice:
            names = [name.strip(" '") for name in choice[3].split(",")]
            message = f"{choice[1]}: found {choice[2]!r}, wanted {_one_of(choice[2], names)}"
        message = message.removeprefix("argument ")
        line = " ".join(message.split())
        print(f"{self.prog}: {line} ({self.prog} --help)", file=sys.stderr)
        raise SystemExit(2)


class _Commands(argparse._SubParsersAction):
    """Commands whose own help begins with what the list of them says."""

    def add_parser(self, name: str, **options: Any) -> Any:
        about = options["help"]
        return super().add_parser(name, description=f"{about[0].upper()}{about[1:]}.", **options)


class _Once(argparse._StoreAction):
    """Stores an option's value; a second one would replace it, and is an error."""

    _given_in: argparse.Namespace | None = None

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        if option_string is not None and self._given_in is namespace:
            parser.error(
                f"{option_string}: found {getattr(namespace, self.dest)!r} and {values!r}, wanted "
                "one of them"
            )
        self._given_in = namespace
        super().__call__(parser, namespace, values, option_string)


def closest(name: str, known: Iterable[str]) -> str | None:
    """The known name that was probably meant, None where none is close."""
    found = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return found[0] if found else None


def _one_of(name: str, names: Sequence[str]) -> str:
    meant = _COMMANDS.get(name)
    close = meant if meant in (*names, "--help", "--version") else closest(name, names)
    hint = f"did you mean {close}?" if close else ""
    if "serve" in names:  # it is a command that is not known
        hint = _NO_COMMANDS.get(name, hint)
    return f"one of {', '.join(names)}" + (f"; {hint}" if hint else "")


def _prompt_hint(options: Iterable[str]) -> str:
    return "; -p gives a prompt" if "--prompt" in options else ""


def _unknown(argument: str, options: Iterable[str]) -> str:
    """What is said of an argument that no option takes."""
    name = argument.partition("=")[0]
    if not name.startswith("-") or _NUMBER.match(name):
        return f"found the argument {argument!r} too many{_prompt_hint(options)}"
    spelled = name.replace("_", "-")  # as other programs may write it
    beside, hint = _ELSEWHERE_BESIDE.get(spelled, ("", ""))
    hint = hint if beside in options else _ELSEWHERE.get(spelled, "")
    if hint and spelled not in options:
        return f"{name}: is not an option; {hint}"
    close = _closest_option(name, options)
    return f"{name}: is not an option" + (f"; did you mean {close}?" if close else "")


def _closest_option(name: str, options: Iterable[str]) -> str | None:
    """The option that was probably meant, or the one whose name begins so. The dashes that all
    begin with do not count.
    """
    plain = {each.lstrip("-"): each for each in options if each != "--help"}
    wanted = name.lstrip("-").replace("_", "-")
    found = difflib.get_close_matches(wanted, plain, n=1, cutoff=0.7)
    begin = [each for each in plain if each.startswith(f"{wanted}-")]
    return plain[found[0]] if found else plain[begin[0]] if len(begin) == 1 else None


def unicode_text(given: str) -> str:
    """The type of an argument that is a text, and no path. Python decodes arguments by the locale;
    bytes that this does not decode are UTF-8, or refused.
    """
    try:
        given.encode()
        return given
    except UnicodeEncodeError:
        pass
    try:
        return os.fsencode(given).decode()
    except UnicodeDecodeError as error:
        raise argparse.ArgumentTypeError(
            f"byte {error.start} is not UTF-8, wanted text in UTF-8"
        ) from None
    except UnicodeEncodeError as error:  # of a caller in Python: no bytes stand behind it
        raise argparse.ArgumentTypeError(
            f"character {error.start} is half of a surrogate pair, wanted valid Unicode"
        ) from None


def number(kind: type = float) -> Callable[[str], Any]:
    """The type of an argument that is a number of a kind."""
    wanted = "a whole number" if kind is int else "a number"

    def read(text: str) -> Any:
        try:
            return kind(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"found {text!r}, wanted {wanted}") from None

    return read
