"""`OxillamaProcessorConfig`: how a dataset is put through engines, under the field names of Ray
Data's LLM API where it has one for the same thing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Literal

from oxillama.arguments import named_fields, unknown
from oxillama.embedded import embedded_path
from oxillama.errors import ConfigError

TASKS = ("generate", "embed")
_OVERHEAD = 1 << 30  # bytes of an actor beside its weights: the interpreter, Ray, keys and values


@named_fields
@dataclass(frozen=True, slots=True, kw_only=True)
class OxillamaProcessorConfig:
    """How many engines run, what each has, and what happens to a row that fails.

    Model and options:

    - `model_source`: any model of `oxillama.load`, on every machine; None for the embedded model.
    - `engine_kwargs`: further keyword arguments of `oxillama.load`.
    - `task_type`: "generate" or "embed".
    - `sampling_params`: defaults for rows without, or with incomplete, sampling_params.
    - `chat_template_stage`: True requires `messages` in every row, False refuses them, None takes a
      row as it is.

    Actors:

    - `concurrency`: actors, each with an engine; (m, n) lets Ray choose.
    - `num_threads`: threads of an engine, and the CPUs that Ray reserves for its actor.
    - `memory`: bytes that Ray reserves for it; None for an estimate from the model's file (twice
      its size and 1 GiB), if this process can see the file.
    - `batch_size`: rows of a call. Small batches cost more of Ray's time for each row; large ones
      leave more work to the last actor.
    - `max_concurrent_batches`: calls that one actor runs at once, so that the engine has work while
      the last rows of a batch end.
    - `max_tasks_in_flight_per_actor`: calls sent to one actor, None for as many as it runs at once.
    - `max_pending_requests`: rows that one engine has at once, None for no limit.

    Errors and restarts:

    - `should_continue_on_error`: a row that fails gets an `__inference_error__` with the reason;
      without it the job ends with that error.
    - `checkpoint`: a folder visible to every machine, where finished rows are stored; `id_column`
      names the column that identifies rows.

    `accelerator_type`, `tokenize_stage` and `detokenize_stage` exist for configurations written for
    other engines: there are no accelerators, and an engine does both stages itself.
    """

    model_source: str | Path | None = None
    engine_kwargs: Mapping[str, object] = field(default_factory=dict)
    task_type: Literal["generate", "embed"] = "generate"
    batch_size: int = 64
    concurrency: int | tuple[int, int] = 1
    max_concurrent_batches: int = 4
    max_tasks_in_flight_per_actor: int | None = None
    max_pending_requests: int | None = None
    should_continue_on_error: bool = False
    runtime_env: Mapping[str, object] | None = None
    num_threads: int = 1
    memory: int | None = None
    sampling_params: Mapping[str, object] = field(default_factory=dict)
    checkpoint: str | Path | None = None
    id_column: str | None = None
    chat_template_stage: bool | None = None
    accelerator_type: None = None
    tokenize_stage: bool = True
    detokenize_stage: bool = True

    def __post_init__(self) -> None:
        if self.task_type not in TASKS:
            raise ConfigError(f"task_type: found {self.task_type!r}, wanted {' or '.join(TASKS)}")
        for name in ("batch_size", "max_concurrent_batches", "num_threads"):
            _count(name, getattr(self, name))
        for name in ("max_tasks_in_flight_per_actor", "max_pending_requests", "memory"):
            if getattr(self, name) is not None:
                _count(name, getattr(self, name))
        self.actors()
        if self.accelerator_type is not None:
            raise ConfigError(
                f"accelerator_type: found {self.accelerator_type!r}, wanted None: engines run on "
                "CPUs"
            )
        for name in ("tokenize_stage", "detokenize_stage"):
            if getattr(self, name) is not True:
                raise ConfigError(
                    f"{name}: found {getattr(self, name)!r}, wanted True: the engine does it; "
                    "rows may bring tokenized_prompt"
                )
        if "num_threads" in self.engine_kwargs or "n_threads" in self.engine_kwargs:
            raise ConfigError(
                "engine_kwargs: found the number of threads, wanted it as num_threads, which Ray "
                "sets CPUs aside for"
            )
        if (self.checkpoint is None) != (self.id_column is None):
            raise ConfigError(
                "checkpoint, id_column: found one of them, wanted both: a folder, and the column "
                "that tells rows apart"
            )

    @classmethod
    def of(cls, given: Mapping[str, object]) -> OxillamaProcessorConfig:
        """A config from keyword arguments; ConfigError names an unknown one."""
        known = {each.name for each in fields(cls)}
        for name in given:
            if name not in known:
                raise unknown(name, known, place="a field of the processor")
        return cls(**given)  # type: ignore[arg-type]  # each is checked above

    def actors(self) -> tuple[int, int]:
        """Least and most actors."""
        found = self.concurrency
        least, most = (found, found) if isinstance(found, int) else tuple(found)
        for each in (least, most):
            _count("concurrency", each)
        if least > most:
            raise ConfigError(f"concurrency: found {found!r}, wanted (least, most)")
        return least, most

    def reserved(self) -> int | None:
        """Bytes that Ray sets aside for an actor, None where nothing is known of the model."""
        return self.memory if self.memory is not None else memory_of(self.model_source)

    def asked(self) -> str:
        """All that decides what an answer is, in one spelling: the model apart, equal texts mean
        equal answers.
        """
        said = {
            "task_type": self.task_type,
            "engine_kwargs": self.engine_kwargs,
            "sampling_params": self.sampling_params,
        }
        return json.dumps(said, sort_keys=True, default=repr)


def memory_of(model: str | Path | None) -> int | None:
    """Bytes to reserve for an engine over a model's file, which is mapped and also packed. None if
    the file is not on this machine.
    """
    path = embedded_path() if model is None else Path(model)
    return 2 * path.stat().st_size + _OVERHEAD if path.is_file() else None


def _count(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"{name}: found {value!r}, wanted an integer of 1 or more")
