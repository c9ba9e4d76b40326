"""`OxillamaPredictor`: an engine in an actor of Ray Data, a batch in and the same batch out with
the columns of its answers.

All rows of a batch are given to the engine at once, which puts them through its steps together as
it does with any requests, and of several batches too: the answers are those of each row alone.
"""

from __future__ import annotations

import asyncio
import gc
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import Any

import pyarrow as pa
from ray.data.block import BlockAccessor

import oxillama
from oxillama.engine.request import Request
from oxillama.errors import ConfigError, OxillamaError, QueueFull
from oxillama.gguf import ModelFingerprint
from oxillama.integrations.ray import rows as rows_of
from oxillama.integrations.ray.checkpoint import Checkpoint
from oxillama.integrations.ray.config import OxillamaProcessorConfig
from oxillama.integrations.ray.rows import RowFunction


class OxillamaPredictor:
    """A callable class for `Dataset.map_batches`, of batches as pyarrow tables or as numpy's.

    config: how it answers; without one, the fields of `OxillamaProcessorConfig` as arguments. The
    columns that it reads and adds are those of docs/ray.md; all others stay as they are.
    preprocess, postprocess: as in `build_processor`.
    """

    def __init__(
        self,
        config: OxillamaProcessorConfig | None = None,
        *,
        preprocess: RowFunction | None = None,
        postprocess: RowFunction | None = None,
        **options: object,
    ) -> None:
        if config is not None and options:
            raise ConfigError(
                f"{next(iter(options))}: found together with config, wanted one of them"
            )
        self.config = config or OxillamaProcessorConfig.of(options)
        self._preprocess, self._postprocess = preprocess, postprocess
        config = self.config
        given: dict[str, Any] = {**config.engine_kwargs, "num_threads": config.num_threads}
        self.engine = oxillama.load(config.model_source, **given)
        self._sampling = rows_of.Sampling(self.engine, config.sampling_params)
        self._embeds = config.task_type == "embed"
        self.columns = rows_of.EMBEDDED if self._embeds else rows_of.GENERATED
        self._limit = asyncio.Semaphore(config.max_pending_requests or 1 << 30)
        self._store: Checkpoint | None = None
        if config.checkpoint is not None:
            self._store = Checkpoint(
                config.checkpoint,
                about={
                    "model": asdict(ModelFingerprint.compute(self.engine.model_files[0])),
                    "options": config.asked(),
                },
                columns=self.columns,
            )
        # what Ray, Arrow and the engine are made of stays: the collector need not read it again
        # each time it looks for what a batch has left
        gc.freeze()

    async def __call__(self, batch: Any) -> Any:
        """The batch with the columns of its answers, rows in their order."""
        rows = self._rows(batch)
        keys: list[object] = []
        found: list[dict[str, Any] | None] = [None] * len(rows)
        if self._store is not None:
            keys = self._keys(rows)
            found = await asyncio.to_thread(self._stored, self._store, keys, rows)
        todo = [at for at, each in enumerate(found) if each is None]
        answers = await self._answers([rows[at] for at in todo])
        if self._store is not None:
            good = [(at, each) for at, each in zip(todo, answers) if not each[rows_of.ERROR]]
            await asyncio.to_thread(
                self._store.keep,
                [keys[at] for at, _ in good],
                [rows[at] for at, _ in good],
                [each for _, each in good],
            )
        for at, each in zip(todo, answers):
            found[at] = each
        done = [each for each in found if each is not None]
        if self._preprocess is None and self._postprocess is None:
            return self._with(batch, done)
        return self._made(rows, done)

    # ---- batches

    def _rows(self, batch: Any) -> list[dict[str, Any]]:
        """The rows of a batch, preprocessed; without anything to be run over them, the columns
        that say what is asked.
        """
        if not isinstance(batch, (pa.Table, Mapping)):
            raise ConfigError(
                f"batch: found {type(batch).__name__}, wanted batch_format='pyarrow' or 'numpy'"
            )
        if self._preprocess is None and self._postprocess is None:
            names = (*rows_of.ASKED, self.config.id_column)
            batch = _columns(batch, [name for name in _names(batch) if name in names])
        rows = _as_rows(batch)
        if self._preprocess is None:
            return rows
        return [{**row, **self._preprocess(row)} for row in rows]

    def _made(self, rows: list[dict[str, Any]], answers: list[dict[str, Any]]) -> dict[str, list]:
        """The batch of the result, out of rows that a function may have made."""
        errors = self.config.should_continue_on_error
        dropped = () if errors else (rows_of.ERROR,)
        whole = [
            {**row, **{name: each for name, each in answer.items() if name not in dropped}}
            for row, answer in zip(rows, answers)
        ]
        made = [rows_of.finished(row, self._postprocess, errors=errors) for row in whole]
        names = dict.fromkeys(name for row in made for name in row)
        return {name: [row.get(name) for row in made] for name in names}

    def _stored(
        self, store: Checkpoint, keys: list[object], rows: list[dict[str, Any]]
    ) -> list[dict[str, Any] | None]:
        """The answers that rows have already, none of them an error."""
        found = [store.find(key, row) for key, row in zip(keys, rows)]
        return [each and {**each, rows_of.ERROR: ""} for each in found]

    def _keys(self, rows: list[dict[str, Any]]) -> list[object]:
        name, keys = self.config.id_column or "", []
        for row in rows:
            if row.get(name) is None:
                raise ConfigError(f"id_column: {name!r} is not in every row, wanted an id in each")
            keys.append(row[name])
        return keys

    def _with(self, batch: Any, answers: list[dict[str, Any]]) -> Any:
        """The batch with its answers as columns of fixed types, whatever the rows hold."""
        columns: dict[str, pa.DataType] = {**self.columns}
        if self.config.should_continue_on_error:
            columns[rows_of.ERROR] = pa.string()
        arrays = {
            name: pa.array([each[name] for each in answers], kind) for name, kind in columns.items()
        }
        if isinstance(batch, pa.Table):
            for name, array in arrays.items():
                if name in batch.column_names:
                    batch = batch.drop_columns([name])
                batch = batch.append_column(name, array)
            return batch
        return {
            **batch,
            **{name: array.to_numpy(zero_copy_only=False) for name, array in arrays.items()},
        }

    # ---- requests

    async def _answers(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The answers of rows, run together."""
        begun: deque[Request] = deque()
        tasks = [asyncio.ensure_future(self._answer(row, begun)) for row in rows]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _answer(self, row: dict[str, Any], begun: deque[Request]) -> dict[str, Any]:
        try:
            async with self._limit:
                request, pooler = await self._begin(row, begun)
                done = await request
                if self._embeds:
                    return {**rows_of.embedded(request, pooler.result()), rows_of.ERROR: ""}
                return {**rows_of.generated(request, done), rows_of.ERROR: ""}
        except (OxillamaError, ValueError, TypeError) as error:
            # an engine that has failed has no answers for the rows to come either
            _ = self.engine.context_size
            if not self.config.should_continue_on_error:
                raise
            return rows_of.failed(error, self.columns)

    async def _begin(self, row: dict[str, Any], begun: deque[Request]) -> tuple[Request, Any]:
        """Submit a row; where the engine's queue is full, once one of those before it has ended."""
        config = self.config
        while True:
            try:
                if self._embeds:
                    made = rows_of.submit_embedding(self.engine, row)
                else:
                    request = rows_of.submit(
                        self.engine,
                        row,
                        sampling=self._sampling,
                        chats=config.chat_template_stage,
                    )
                    made = (request, None)
                begun.append(made[0])
                return made
            except QueueFull:
                while begun and begun[0].done:
                    begun.popleft()
                if not begun:
                    await asyncio.sleep(0.01)  # other batches fill it
                    continue
                with suppress(Exception):  # whoever it belongs to is told
                    await begun[0]


def _names(batch: Any) -> list[str]:
    return batch.column_names if isinstance(batch, pa.Table) else list(batch)


def _columns(batch: Any, names: list[str]) -> Any:
    if isinstance(batch, pa.Table):
        return batch.select(names)
    return {name: batch[name] for name in names}


def _as_rows(batch: Any) -> list[dict[str, Any]]:
    """Rows as `Dataset.map` has them."""
    if isinstance(batch, pa.Table):
        rows: Any = BlockAccessor.for_block(batch).iter_rows(public_row_format=True)
        return [dict(row) for row in rows]
    size = len(next(iter(batch.values()), ()))
    return [{name: column[at] for name, column in batch.items()} for at in range(size)]
