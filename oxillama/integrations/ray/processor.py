"""`build_processor`: preprocess, an engine's answers, postprocess, over a dataset; the shape and
the names are those of Ray Data's LLM API.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ray.data import ActorPoolStrategy

from oxillama.errors import ConfigError
from oxillama.integrations.ray.config import OxillamaProcessorConfig
from oxillama.integrations.ray.predictor import OxillamaPredictor
from oxillama.integrations.ray.rows import ASKED, EMBEDDED, GENERATED, RowFunction, finished, pack

if TYPE_CHECKING:
    from ray.data import Dataset


class Processor:
    """What `build_processor` makes: call it with a dataset, and it is the dataset of the answers,
    lazily, rows in the order in which they came.
    """

    def __init__(
        self,
        config: OxillamaProcessorConfig,
        preprocess: RowFunction | None = None,
        postprocess: RowFunction | None = None,
        preprocess_map_kwargs: Mapping[str, Any] | None = None,
        postprocess_map_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        self.config = config
        self._preprocess, self._postprocess = preprocess, postprocess
        self._before = dict(preprocess_map_kwargs or {})
        self._after = dict(postprocess_map_kwargs or {})

    def __call__(self, dataset: Dataset) -> Dataset:
        """The dataset with the answers' columns; nothing runs before rows are asked for."""
        config = self.config
        dataset.context.execution_options.preserve_order = True
        before, after = self._preprocess, self._postprocess
        if self._before:
            dataset = dataset.map(_before(before), **self._before)
            before = None
        least, most = config.actors()
        memory = config.reserved()
        dataset = dataset.map_batches(
            OxillamaPredictor,
            fn_constructor_kwargs={
                "config": config,
                "preprocess": before,
                "postprocess": None if self._after else after,
            },
            batch_size=config.batch_size,
            batch_format="pyarrow",
            compute=ActorPoolStrategy(
                min_size=least,
                max_size=most,
                # Ray's own default is twice as many: the first actor to start would take all of a
                # short dataset, and what it has taken no other can help with
                max_tasks_in_flight_per_actor=config.max_tasks_in_flight_per_actor
                or config.max_concurrent_batches,
                max_concurrent_calls_per_actor=config.max_concurrent_batches,
            ),
            num_cpus=config.num_threads,
            memory=memory,
            runtime_env=None if config.runtime_env is None else dict(config.runtime_env),
        )
        if not self._after:
            return dataset
        errors = config.should_continue_on_error
        return dataset.map(_after(after, errors=errors), **self._after)

    def list_stage_names(self) -> list[str]:
        """The stages between preprocess and postprocess."""
        return [OxillamaPredictor.__name__]

    def log_input_column_names(self) -> str:
        """The columns that the first stage reads and those that it adds, as text, and printed."""
        added = EMBEDDED if self.config.task_type == "embed" else GENERATED
        said = (
            f"The first stage of the processor is {OxillamaPredictor.__name__}.\n"
            f"It reads: {', '.join(ASKED)}\nIt adds: {', '.join(added)}"
        )
        print(said)
        return said


def build_processor(
    config: OxillamaProcessorConfig,
    preprocess: RowFunction | None = None,
    postprocess: RowFunction | None = None,
    preprocess_map_kwargs: Mapping[str, Any] | None = None,
    postprocess_map_kwargs: Mapping[str, Any] | None = None,
    builder_kwargs: Mapping[str, Any] | None = None,
) -> Processor:
    """A processor of datasets.

    preprocess: from a row to the input columns (`messages` or `prompt`, `sampling_params`, ...);
    the row's other columns stay. postprocess: from a row with its answer to the row of the result;
    failed rows skip it. Both run in the actors of the engines, unless they have map_kwargs: then in
    tasks of their own, with these arguments of `Dataset.map`. builder_kwargs: none are supported.
    """
    if not isinstance(config, OxillamaProcessorConfig):
        raise ConfigError(
            f"config: found {type(config).__name__}, wanted an OxillamaProcessorConfig"
        )
    if builder_kwargs:
        raise ConfigError(
            f"builder_kwargs: found {', '.join(builder_kwargs)}, wanted none; chat_template_kwargs "
            "is a column"
        )
    return Processor(config, preprocess, postprocess, preprocess_map_kwargs, postprocess_map_kwargs)


def _before(function: RowFunction | None) -> RowFunction:
    """The rows as the engine's stage takes them."""

    def before(row: dict[str, Any]) -> dict[str, Any]:
        return pack(row if function is None else {**row, **function(row)})

    return before


def _after(function: RowFunction | None, *, errors: bool) -> RowFunction:
    """The rows of the result."""

    def after(row: dict[str, Any]) -> dict[str, Any]:
        return finished(row, function, errors=errors)

    return after
