"""Options of every command that generates: samplers, limits and constraints, under llama.cpp's
names and ours.

An option that is left out changes nothing: the engine's default applies, which is the file's if it
names a sampler.
"""

from __future__ import annotations

import argparse
import re
from typing import Any

import oxillama
from oxillama.cli.diffusion import add_diffusion, diffusion_of
from oxillama.cli.loading import drafts_of
from oxillama.cli.parsing import closest, number, unicode_text
from oxillama.cli.streams import read
from oxillama.engine.config import WAYS

# the values of --speculative
DRAFTS = (
    f"{', '.join(WAYS)}[:LAYERS], off, or a draft as MODEL names one (a smaller model, EAGLE-3, "
    "DFlash, a Gemma 4 assistant, mtp-*.gguf)"
)

# (names, field of a sampler, kind, help)
_NUMBERS: tuple[tuple[tuple[str, ...], str, type, str], ...] = (
    (("--temp", "--temperature"), "temperature", float, "temperature; 0 is greedy"),
    (("--top-k",), "top_k", int, "keep the k likeliest tokens; 0 is off"),
    (("--top-p",), "top_p", float, "keep the likeliest tokens of this mass; 1 is off"),
    (("--min-p",), "min_p", float, "drop tokens under this share of the likeliest; 0 is off"),
    (("--typical", "--typical-p"), "typical_p", float, "locally typical sampling; 1 is off"),
    (
        ("--top-nsigma", "--top-n-sigma"),
        "top_n_sigma",
        float,
        "keep logits within n standard deviations of the highest; -1 is off",
    ),
    (("--top-a",), "top_a", float, "drop tokens under a times the squared likeliest; 0 is off"),
    (("--eta-cutoff",), "eta_cutoff", float, "eta sampling; 0 is off"),
    (("--epsilon-cutoff",), "epsilon_cutoff", float, "epsilon sampling; 0 is off"),
    (
        ("--repeat-penalty", "--repetition-penalty"),
        "repetition_penalty",
        float,
        "penalty of tokens that were there; 1 is off",
    ),
    (
        ("--repeat-last-n", "--repetition-window"),
        "repetition_window",
        int,
        "tokens that penalties look back at; -1 is all",
    ),
    (("--frequency-penalty",), "frequency_penalty", float, "penalty for each occurrence"),
    (("--presence-penalty",), "presence_penalty", float, "penalty for any occurrence"),
    (("--dry-multiplier",), "dry_multiplier", float, "DRY: strength; 0 is off"),
    (("--dry-base",), "dry_base", float, "DRY: base of the penalty"),
    (("--dry-allowed-length",), "dry_allowed_length", int, "DRY: repeats up to here are free"),
    (("--dry-penalty-last-n",), "dry_penalty_last_n", int, "DRY: tokens looked back at; -1 is all"),
    (("--xtc-probability",), "xtc_probability", float, "XTC: chance to leave out likely tokens"),
    (("--xtc-threshold",), "xtc_threshold", float, "XTC: tokens above it may be left out"),
    (("--dynatemp-range",), "dynatemp_range", float, "temperature varies by so much; 0 is off"),
    (("--dynatemp-exp", "--dynatemp-exponent"), "dynatemp_exponent", float, "its exponent"),
    (("--mirostat",), "mirostat", int, "0 (off), 1 or 2"),
    (("--mirostat-ent", "--mirostat-tau"), "mirostat_tau", float, "mirostat: the surprise wanted"),
    (("--mirostat-lr", "--mirostat-eta"), "mirostat_eta", float, "mirostat: the learning rate"),
    (("--min-tokens",), "min_tokens", int, "do not end before so many tokens"),
)
# further options that are passed on as they are
_OTHERS = (
    "dry_sequence_breakers",
    "ignore_eos",
    "banned_tokens",
    "allowed_tokens",
    "stop_token_ids",
)


def add_generation(command: argparse.ArgumentParser) -> None:
    """The options that `generation` reads."""
    command.add_argument(
        "-n",
        "--predict",
        "--n-predict",
        "--max-tokens",
        dest="max_tokens",
        type=number(int),
        default=None,
        metavar="N",
        help="stop after so many tokens (default, and -1: the end of the context)",
    )
    command.add_argument(
        "-s",
        "--seed",
        type=number(int),
        default=None,
        metavar="N",
        help="the same seed gives the same text (default, and -1: a fresh one)",
    )
    command.add_argument(
        "--stop",
        "-r",
        "--reverse-prompt",
        dest="stop",
        action="append",
        type=unicode_text,
        default=[],
        metavar="TEXT",
        help="stop before this text; may be given more than once",
    )
    command.add_argument(
        "--ignore-eos", action="store_true", default=None, help="go on where the model would end"
    )
    command.add_argument(
        "--context-shift",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="at the end of the context forget the older half and go on",
    )
    command.add_argument(
        "--keep",
        type=number(int),
        default=None,
        metavar="N",
        help="first tokens that a context shift keeps",
    )
    command.add_argument(
        "--speculative",
        default=None,
        metavar="HOW",
        help=f"{DRAFTS}: the same text, sooner",
    )
    command.add_argument(
        "--no-timings", dest="timings", action="store_false", help="print no timings at the end"
    )
    _add_samplers(command.add_argument_group("sampling (default: the file's own, else ours)"))
    _add_constraints(command.add_argument_group("what the text must be (one of)"))
    add_diffusion(command)


def _add_samplers(group: argparse._ArgumentGroup) -> None:
    """How tokens are drawn."""
    default = oxillama.SamplerConfig()
    for names, field, kind, text in _NUMBERS:
        own = getattr(default, field)
        group.add_argument(
            *names,
            dest=field,
            type=number(kind),
            default=None,
            metavar="N",
            help=text if own is None else f"{text} (default: {own})",
        )
    group.add_argument(
        "--dry-sequence-breaker",
        dest="dry_sequence_breakers",
        action="append",
        type=unicode_text,
        default=None,
        metavar="TEXT",
        help="DRY: text that a repeat does not cross, in place of the defaults; may be given more "
        "than once",
    )
    group.add_argument(
        "-l",
        "--logit-bias",
        action="append",
        default=None,
        metavar="TOKEN(+|-)BIAS",
        help="add to a token's logit: 15043+1, 15043-inf; may be given more than once",
    )
    for name, text in (
        ("--banned-tokens", "tokens that are never drawn"),
        ("--allowed-tokens", "the only tokens that are drawn"),
        ("--stop-token-ids", "tokens that end the text"),
    ):
        group.add_argument(name, type=_ids, default=None, metavar="ID,ID,...", help=text)
    group.add_argument(
        "--samplers",
        default=None,
        metavar="A;B;...",
        help="the stages that run, in their order",
    )


def _add_constraints(group: argparse._ArgumentGroup) -> None:
    """A grammar, a schema or an expression."""
    group.add_argument(
        "--grammar", type=unicode_text, default=None, metavar="TEXT", help="a GBNF grammar"
    )
    group.add_argument("--grammar-file", default=None, metavar="FILE", help="a file of one")
    group.add_argument(
        "-j",
        "--json-schema",
        default=None,
        metavar="FILE|TEXT",
        help="a JSON schema: JSON text, or a file of it",
    )
    group.add_argument(
        "-jf", "--json-schema-file", default=None, metavar="FILE", help="a file of one"
    )
    group.add_argument(
        "--regex", type=unicode_text, default=None, metavar="TEXT", help="a regular expression"
    )


def generation(arguments: argparse.Namespace) -> dict[str, Any]:
    """The keyword arguments of `stream` that the options ask for, checked."""
    options: dict[str, Any] = {"max_tokens": arguments.max_tokens, "stop": arguments.stop}
    for name in (*(field for _, field, _, _ in _NUMBERS), *_OTHERS):
        value = getattr(arguments, name)
        if value is not None:
            options[name] = value
    if options.get("top_n_sigma") == -1:  # off, as in llama.cpp
        options["top_n_sigma"] = None
    if arguments.seed is not None:
        options["seed"] = arguments.seed
    if arguments.samplers is not None:
        options["samplers"] = _samplers(arguments.samplers)
    if arguments.logit_bias is not None:
        options["logit_bias"] = dict(map(_bias, arguments.logit_bias))
    if arguments.context_shift:
        options["context_shift"] = True
    if arguments.keep is not None:
        options["keep"] = arguments.keep
    if arguments.speculative is not None:
        options["speculative"] = drafts_of(arguments)
    options |= _constraint(arguments) | diffusion_of(arguments)
    oxillama.Options.of(options)
    return options


def _ids(text: str) -> list[int]:
    """Token ids with commas between them."""
    try:
        return [int(each) for each in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"found {text!r}, wanted token ids such as 5,17") from None


def _samplers(text: str) -> tuple[str, ...]:
    """Stages by our names or llama.cpp's, separated by semicolons or commas."""
    from oxillama.sampling import REORDERABLE

    other = {"typ_p": "typical", "typical_p": "typical", "temp": "temperature"}
    names = [name.strip() for name in text.replace(",", ";").split(";") if name.strip()]
    out = []
    for name in names:
        own = other.get(name, name)
        if own not in REORDERABLE:
            close = closest(own, REORDERABLE)
            raise oxillama.ConfigError(
                f"--samplers: found {name!r}, wanted some of {', '.join(REORDERABLE)}"
                + (f"; did you mean {close}?" if close else "")
            )
        out.append(own)
    return tuple(out)


def _bias(text: str) -> tuple[int, float]:
    """A token and its bias, as llama.cpp writes them: 15043+1, 15043-1, 15043-inf."""
    match = re.fullmatch(r"(\d+)([+-].+)", text)
    try:
        token, bias = match.groups() if match else ("", text)
        return int(token), float(bias)
    except ValueError:
        raise oxillama.ConfigError(
            f"--logit-bias: found {text!r}, wanted TOKEN+BIAS or TOKEN-BIAS, such as 15043-1"
        ) from None


def _constraint(arguments: argparse.Namespace) -> dict[str, Any]:
    """The one constraint of the options."""
    given = {
        "--grammar": arguments.grammar,
        "--grammar-file": arguments.grammar_file,
        "--json-schema": arguments.json_schema,
        "--json-schema-file": arguments.json_schema_file,
        "--regex": arguments.regex,
    }
    named = [name for name, value in given.items() if value is not None]
    if len(named) > 1:
        raise oxillama.ConfigError(
            f"{named[1]}: found together with {named[0]}, wanted one constraint"
        )
    if not named:
        return {}
    name, value = named[0], given[named[0]]
    if name in ("--grammar-file", "--json-schema-file"):
        value = read(value)
    elif name == "--json-schema":
        value = _schema(value)
    option = name.removeprefix("--").removesuffix("-file").replace("-", "_")
    return {option: value}


def _schema(given: str) -> str:
    """The text of a schema: what begins as an object or is a boolean is one, all else is a file."""
    text = given.strip()
    if text.startswith("@"):
        return read(text[1:])
    if text.startswith("{") or text in ("true", "false"):
        try:
            return unicode_text(given)
        except argparse.ArgumentTypeError as error:
            raise oxillama.ConfigError(f"--json-schema: {error}") from None
    return read(given)
