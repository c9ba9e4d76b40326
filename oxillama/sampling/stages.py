"""The ordered table of sampler stages: what each does, from which paper, with which numbers. Stages
run in the order of the rows.

The compiled table in `oxillama._core.stages` has the same rows, which a test checks. `SamplerStage`
is one stage with its numbers: a row of this table, or a Python function.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from oxillama.errors import ConfigError


@dataclass(frozen=True, slots=True)
class StageInfo:
    """A row of the table: the stage's name, the names and neutral values of its numbers, its
    meaning and its source.
    """

    name: str
    # (name, default or None, lowest, highest)
    parameters: tuple[tuple[str, float | None, float, float], ...]
    meaning: str
    source: str


INF = math.inf

STAGES: tuple[StageInfo, ...] = (
    StageInfo(
        "bias",
        (),
        "Adds logit_bias, then sets banned tokens to -inf: a ban beats any bias.",
        "OpenAI API, logit_bias",
    ),
    StageInfo(
        "penalties",
        (
            ("repetition", 1.0, 1e-6, INF),
            ("frequency", 0.0, -INF, INF),
            ("presence", 0.0, -INF, INF),
            ("window", 64, -1, 2**31 - 1),
        ),
        "For each distinct token of the window: l <- l/repetition if l > 0 else l*repetition; then "
        "l <- l - count*frequency - presence.",
        "Keskar et al. 2019, CTRL, section 4.1; OpenAI API, frequency and presence penalties",
    ),
    StageInfo(
        "dry",
        (
            ("multiplier", None, 0, INF),
            ("base", 1.75, 1, INF),
            ("allowed_length", 2, 1, 2**31 - 1),
            ("last_n", -1, -1, 2**31 - 1),
        ),
        "A token that would extend a repeat of the newest n >= allowed_length tokens loses "
        "multiplier * base^(n - allowed_length); a match never reaches past a sequence breaker.",
        "p-e-w, DRY (text-generation-webui pull request 5677); linear-time matching by Z values, "
        "Gusfield 1997, section 1.3",
    ),
    StageInfo(
        "mask",
        (),
        "Removes tokens whose bit is clear in the mask or that are not in allowed_tokens.",
        "Willard and Louf 2023, section 3",
    ),
    StageInfo(
        "top_n_sigma",
        (("n", None, 1e-6, INF),),
        "Keeps l >= max - n * standard deviation of the finite logits.",
        "Tang et al. 2024, Top-n-sigma",
    ),
    StageInfo(
        "top_k",
        (("k", None, 1, 2**31 - 1),),
        "Keeps the k largest logits; ties go to the lower id.",
        "Fan et al. 2018, section 5.4",
    ),
    StageInfo(
        "typical",
        (("p", None, 0, 1),),
        "Takes tokens by ascending |-log p - entropy| until their mass reaches p.",
        "Meister et al. 2023, Locally Typical Sampling, equation 11",
    ),
    StageInfo(
        "top_a", (("a", None, 0, INF),), "Keeps p >= a * p_max^2.", "BlinkDL, top-a (RWKV-LM)"
    ),
    StageInfo(
        "eta",
        (("epsilon", None, 0, 1),),
        "Keeps p >= min(epsilon, sqrt(epsilon) * exp(-entropy)).",
        "Hewitt et al. 2022, section 4.2",
    ),
    StageInfo(
        "epsilon",
        (("epsilon", None, 0, 1),),
        "Keeps p >= epsilon.",
        "Hewitt et al. 2022, section 4.1",
    ),
    StageInfo(
        "top_p",
        (("p", None, 0, 1),),
        "Takes tokens by descending p until their mass reaches p.",
        "Holtzman et al. 2020, section 3.1",
    ),
    StageInfo(
        "min_p",
        (("p", None, 0, 1),),
        "Keeps p >= min_p * p_max.",
        "Nguyen et al. 2024, Min-p, algorithm 1",
    ),
    StageInfo(
        "xtc",
        (("probability", None, 0, 1), ("threshold", 0.1, 0, 1)),
        "With the given probability: of the tokens with p >= threshold, removes all but the least "
        "likely; special tokens stay.",
        "p-e-w, Exclude Top Choices (text-generation-webui pull request 6335)",
    ),
    StageInfo(
        "temperature",
        (("t", None, 0, INF), ("range", 0.0, 0, INF), ("exponent", 1.0, 0, INF)),
        "l <- l / t; with a range, t moves from t - range to t + range with (entropy / log "
        "candidates)^exponent. 0 keeps the largest.",
        "Ackley et al. 1985; dynamic: kalomaze, entropy sampling",
    ),
    StageInfo(
        "mirostat",
        (("version", None, 1, 2), ("tau", 5.0, 0, INF), ("eta", 0.1, 0, INF)),
        "Cuts at a surprise of mu bits (version 2) or at the k that a Zipf fit of the head gives "
        "(version 1); after the draw mu <- mu - eta * (surprise - tau), from 2 tau.",
        "Basu et al. 2021, Mirostat, algorithms 1 and 2",
    ),
)

NAMES = tuple(stage.name for stage in STAGES)
ROWS = {stage.name: stage for stage in STAGES}
REORDERABLE = tuple(name for name in NAMES if name not in ("bias", "mask", "mirostat"))

PythonStage = Callable[[Any, Any], Any]


@dataclass(frozen=True, slots=True)
class SamplerStage:
    """One stage of a chain with its numbers, in the order of its row's parameters; or a named
    Python function.

    Make one with `SamplerStage.of("top_p", p=0.9)` or `SamplerStage.python("mine", function)`. A
    Python stage is called with the candidates' ids (n,) int32 and current logits (n,) float32. It
    returns new logits for the same ids, or None if it changed them in place; -inf removes a
    candidate. It is slow, because it sees every candidate, and it cannot restore removed ones.
    """

    name: str
    values: tuple[float, ...] = ()
    function: PythonStage | None = None

    def __post_init__(self) -> None:
        if self.function is not None:
            named = isinstance(self.name, str) and self.name and self.name not in ROWS
            if not callable(self.function) or not named:
                raise ConfigError(
                    f"stage {self.name!r:.50}: found {self.function!r:.50}, wanted a callable "
                    "under a name of its own"
                )
            return
        row = ROWS.get(self.name) if isinstance(self.name, str) else None
        if row is None:
            raise ConfigError(f"stage: found {self.name!r:.50}, wanted one of {list(NAMES)}")
        if len(self.values) != len(row.parameters):
            raise ConfigError(
                f"stage {self.name}: found {len(self.values)} numbers, wanted "
                f"{[p[0] for p in row.parameters]}"
            )
        for (name, _, low, high), value in zip(row.parameters, self.values):
            if (
                isinstance(value, bool)
                or not isinstance(value, (int, float))
                or not math.isfinite(value)
                or not low <= value <= high
            ):
                raise ConfigError(
                    f"stage {self.name}: {name}: found {value!r}, wanted a finite number in "
                    f"[{low}, {high}]"
                )
            if isinstance(low, int) and high == 2**31 - 1 and int(value) != value:
                raise ConfigError(f"stage {self.name}: {name}: found {value!r}, wanted an integer")
        if self.name == "mirostat" and self.values[0] not in (1, 2):
            raise ConfigError(f"stage mirostat: version: found {self.values[0]!r}, wanted 1 or 2")

    @classmethod
    def of(cls, name: str, /, **numbers: float) -> "SamplerStage":
        """A built-in stage by name, its numbers by keyword; numbers with a default can be left
        out.
        """
        row = ROWS.get(name) if isinstance(name, str) else None
        if row is None:
            raise ConfigError(f"stage: found {name!r:.50}, wanted one of {list(NAMES)}")
        wanted = [p[0] for p in row.parameters]
        for given in numbers:
            if given not in wanted:
                raise ConfigError(f"stage {name}: found parameter {given!r}, wanted {wanted}")
        values = []
        for parameter, default, _, _ in row.parameters:
            value = numbers.get(parameter, default)
            if value is None:
                raise ConfigError(f"stage {name}: found no {parameter}, wanted it given")
            values.append(value)
        return cls(name, tuple(values))

    @classmethod
    def python(cls, name: str, function: PythonStage) -> "SamplerStage":
        """A stage made of a Python function: function(ids, logits) -> logits or None."""
        return cls(name, (), function)
