"""The classes of llama-cpp-python that a `Llama` is given or gives: functions over logits, caches,
states, grammars.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from oxillama.compat import constants
from oxillama.errors import ConfigError
from oxillama.grammar import ClosedSchema, Grammar

# of (token ids, logits): the logits that a token is drawn from, and whether the text is over
LogitsProcessor = Callable[[np.ndarray, np.ndarray], Any]
StoppingCriteria = Callable[[np.ndarray, np.ndarray], Any]
ANY_SEED = constants.LLAMA_DEFAULT_SEED


class LogitsProcessorList(list[LogitsProcessor]):
    """Functions over (token ids, logits) that are called in order."""

    def __call__(self, input_ids: np.ndarray, scores: np.ndarray) -> np.ndarray:
        for processor in self:
            scores = processor(input_ids, scores)
        return scores


class MinTokensLogitsProcessor:
    """Bans the token that ends a text until `min_tokens` tokens follow the prompt, which is what
    the first call is given; make a new one for each completion.
    """

    def __init__(self, min_tokens: int, token_eos: int) -> None:
        self.min_tokens, self.token_eos = min_tokens, token_eos
        self.prompt_tokens: int | None = None

    def __call__(self, input_ids: np.ndarray, scores: np.ndarray) -> np.ndarray:
        if self.prompt_tokens is None:
            self.prompt_tokens = len(input_ids)
        if len(input_ids) - self.prompt_tokens < self.min_tokens:
            scores[self.token_eos] = -np.inf
        return scores


class StoppingCriteriaList(list[StoppingCriteria]):
    """Functions over (token ids, logits): before each token they are given those so far and the
    row that the token would be drawn from, and the text ends where one of them is true.
    """

    def __call__(self, input_ids: np.ndarray, logits: np.ndarray) -> bool:
        return any(criterion(input_ids, logits) for criterion in self)


class Stopping:
    """Stopping criteria as a processor of logits: where they are met it cancels its request."""

    def __init__(self, criteria: StoppingCriteria) -> None:
        self._criteria = criteria
        self._request: Future[Any] = Future()  # it may call this before its maker has it

    def watch(self, request: Any) -> None:
        self._request.set_result(request)

    def __call__(self, input_ids: np.ndarray, scores: np.ndarray) -> np.ndarray:
        if self._criteria(input_ids, scores.copy()):
            self._request.result().cancel()
        return scores


@dataclass(frozen=True, slots=True)
class LlamaPromptLookupDecoding:
    """`draft_model=`: candidates from earlier text. The engine decides how many are worth running;
    the numbers are accepted for compatibility and change no result.
    """

    max_ngram_size: int = 2
    num_pred_tokens: int = 10


@dataclass(frozen=True, slots=True)
class LlamaRAMCache:
    """`set_cache`: stored prefixes. The engine has its own, which is always on; the capacity is
    accepted for compatibility and changes no result.
    """

    capacity_bytes: int = 2 << 30


LlamaCache = LlamaRAMCache


class LlamaDiskCache:
    """Not supported: stored prefixes are kept in memory."""

    def __init__(self, cache_dir: str = ".cache/llama_cache", capacity_bytes: int = 2 << 30):
        raise ConfigError(
            "LlamaDiskCache: is not done here, wanted LlamaRAMCache; what save_state returns can "
            "be pickled to a file"
        )


class LlamaHFTokenizer:
    """Not supported: texts are encoded with the vocabulary of the model's file."""

    def __init__(self, hf_tokenizer: Any) -> None:
        self._refuse()

    @classmethod
    def from_pretrained(cls, path: str) -> NoReturn:
        """Refused as well."""
        cls._refuse()

    @staticmethod
    def _refuse() -> NoReturn:
        raise ConfigError(
            "LlamaHFTokenizer: is not done here, wanted no tokenizer=: the file has its vocabulary"
        )


@dataclass(frozen=True, slots=True)
class LlamaState:
    """The result of `save_state`: the tokens, the rest of the session as bytes, the functions of
    its last completion, which bytes cannot hold, and the seed of completions without one.
    """

    input_ids: np.ndarray
    n_tokens: int
    llama_state: bytes
    processors: tuple[LogitsProcessor, ...] = ()
    seed: int = ANY_SEED

    @property
    def llama_state_size(self) -> int:
        """Bytes of `llama_state`."""
        return len(self.llama_state)


class LlamaGrammar:
    """A grammar that a text must follow."""

    def __init__(self, grammar: Grammar) -> None:
        self.grammar = grammar

    @classmethod
    def from_string(cls, grammar: str, verbose: bool = True) -> LlamaGrammar:
        """From GBNF; GrammarError if it is malformed."""
        return cls(Grammar.parse(grammar))

    @classmethod
    def from_file(cls, file: str | Path, verbose: bool = True) -> LlamaGrammar:
        """From a file of GBNF."""
        return cls.from_string(Path(file).read_text(encoding="utf-8"))

    @classmethod
    def from_json_schema(cls, json_schema: str, verbose: bool = True) -> LlamaGrammar:
        """From the text of a JSON schema; objects have only the members that it names, as in
        llama.cpp.
        """
        if not isinstance(json_schema, (str, bytes)):
            raise ConfigError(
                f"json_schema: found {type(json_schema).__name__}, wanted the text of a schema"
            )
        try:
            schema = json.loads(json_schema)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"json_schema: found no JSON ({error}), wanted it") from None
        shut = ClosedSchema(schema) if isinstance(schema, Mapping) else schema
        return cls(Grammar.from_json_schema(shut))
