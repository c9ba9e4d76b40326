"""The sampler of one request: `Sampler` draws tokens, remembers what penalties need, forks, and
saves its state exactly.

`Logprobs` describes a draw. `token_logprobs` reads raw rows without a sampler (prompt
log-probabilities).
"""

import hashlib
import json
import math
import secrets
import struct
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np

from oxillama._core.sampler import SamplerCore, logprobs
from oxillama._core.xorshift import Xorshift64
from oxillama.errors import ConfigError, SamplingError, not_pickled
from oxillama.sampling.chain import breaker_ids, compile_stages, stages_of, token_lists
from oxillama.sampling.config import SamplerConfig, token_ids
from oxillama.sampling.distribution import Distribution, distribution, settled
from oxillama.sampling.draw import draw, token_array
from oxillama.sampling.stages import SamplerStage

Processor = Callable[[np.ndarray, np.ndarray], np.ndarray | None]

# magic, version, 0, vocabulary, chain digest, seed, stream, mu, generated, history
_STATE = struct.Struct("<4sHHI16sQQdqq")
_MAGIC, _VERSION = b"OXSM", 1


@dataclass(frozen=True, slots=True)
class Logprobs:
    """Log-probabilities (natural) of one drawn token and of the likeliest tokens, before any stage
    (raw) and after all (final).
    """

    token: int
    raw: float
    final: float
    raw_ids: tuple[int, ...]
    raw_values: tuple[float, ...]
    final_ids: tuple[int, ...]
    final_values: tuple[float, ...]


def token_logprobs(
    row: np.ndarray, token: int, *, top: int = 0
) -> tuple[float, list[int], list[float]]:
    """Log-softmax of a raw (vocab,) row: (log-probability of `token`, ids of the `top` likeliest,
    their log-probabilities).
    """
    return logprobs(np.ascontiguousarray(row, dtype=np.float32), token, top)


class Sampler:
    """Draws the tokens of one request.

    `special_ids` are never removed by XTC. `eog_ids` end a generation (banned by ignore_eos and,
    with stop_token_ids, until min_tokens were accepted). `dry_breakers` are the sequence breakers
    as token ids (`breaker_sequences` makes them from the config's text); ConfigError for DRY with
    breakers in text and no `dry_breakers`. `seed` overrides the config's. `processors` are Python
    functions (tokens so far (n,) int32, logits (vocab,) float32) -> logits or None (changed in
    place) that run before all stages, and `stages` are Python stages that run before the
    temperature. Both are slow, and neither can restore a banned or masked token. With `logprobs=k`,
    `.logprobs` describes each draw.

    Not for two threads at once; forks are independent.
    """

    __slots__ = (
        "config",
        "vocab_size",
        "seed",
        "processors",
        "_core",
        "_lists",
        "_top",
        "_logprobs",
        "_digest",
        "_ready",
        "_tokens",
    )

    __reduce__ = not_pickled(
        "sampler: holds memory of this process",
        "`fork()` makes another, `state()` gives bytes that `restore` takes",
    )

    def __init__(
        self,
        config: SamplerConfig,
        vocab_size: int,
        *,
        special_ids: Iterable[int] = (),
        eog_ids: Iterable[int] = (),
        dry_breakers: Iterable[Sequence[int]] | None = None,
        seed: int | None = None,
        processors: Sequence[Processor] = (),
        stages: Sequence[SamplerStage] = (),
        logprobs: int | None = None,
    ) -> None:
        if not isinstance(config, SamplerConfig):
            raise ConfigError(f"config: found {type(config).__name__}, wanted SamplerConfig")
        if (
            isinstance(vocab_size, bool)
            or not isinstance(vocab_size, (int, np.integer))
            or not 0 < vocab_size < 2**28
        ):
            raise ConfigError(f"vocab_size: found {vocab_size!r}, wanted an integer in [1, 2^28)")
        if logprobs is not None and not 0 <= logprobs <= vocab_size:
            raise ConfigError(
                f"logprobs: found {logprobs!r}, wanted None or 0 to the vocabulary size "
                f"{vocab_size}"
            )
        self.config = config
        self.vocab_size = int(vocab_size)
        self.processors = tuple(processors)
        eog = token_ids("eog_ids", eog_ids)
        lists = token_lists(config, breaker_ids(config, dry_breakers))
        self._lists = {
            **lists,
            "bans": (*lists["bans"], *(eog if config.ignore_eos else ())),
            "late": (*eog, *config.stop_token_ids) if config.min_tokens else (),
            "min_tokens": config.min_tokens,
            "special": token_ids("special_ids", special_ids),
        }
        chain = compile_stages(_with_own(stages_of(config), stages), self.vocab_size, **self._lists)
        drawn = config.seed if seed is None else seed
        self.seed = secrets.randbits(64) if drawn is None else drawn
        self._core = SamplerCore(chain, Xorshift64(self.seed).raw_state())
        self._top = -1 if logprobs is None else int(logprobs)
        self._logprobs: Logprobs | None = None
        self._tokens: list[int] = []
        self._digest = b""
        # (a row, what the processors made of it) that the next draw may be from
        self._ready: tuple[np.ndarray, np.ndarray] | None = None

    def sample(self, logits: np.ndarray, mask: np.ndarray | None = None) -> int:
        """Draw a token id from (vocab,) float32 logits, which are not changed.

        `mask` is a bitset, (ceil(vocab/32),) uint32; a set bit allows a token. SamplingError for
        NaN or +inf, and, with the reason, if no token is left. The token counts as seen only after
        `accept`.
        """
        raw = row = _row(logits)
        if self.processors:
            raw, row = self._processed(logits)
        token = draw(self._core, row, mask, self._top, self._reasons)
        if self._top >= 0:
            own, ids, values = logprobs(raw, token, self._top)
            assert self._core.last is not None  # the draw has just set it
            _, final, final_ids, final_values = self._core.last
            self._logprobs = Logprobs(
                token, own, final, tuple(ids), tuple(values), tuple(final_ids), tuple(final_values)
            )
        return token

    def judge(
        self, logits: np.ndarray, mask: np.ndarray | None, token: int, drawn_from: Distribution
    ) -> int:
        """`token`, which was drawn from another distribution, or a replacement, so that the result
        is a draw from this sampler's own.

        With p the distribution of `sample` and q the other one, `token` is kept with probability
        min(1, p/q); otherwise one is drawn from max(0, p - q), normalised (Leviathan et al. 2023,
        algorithm 1). The same as `sample` if this sampler is deterministic.
        """
        if self.config.temperature == 0:
            return self.sample(logits, mask)
        raw, row = self._processed(logits)
        own = distribution(self._core, row, mask, self._reasons)
        taken, share = settled(own, token, drawn_from, self._core.uniform, self.vocab_size)
        self._core.settle(share)
        if self._top >= 0:
            chance, ids, values = logprobs(raw, taken, self._top)
            best = own.likeliest(self._top)
            self._logprobs = Logprobs(
                taken,
                chance,
                math.log(share),
                tuple(ids),
                tuple(values),
                tuple(token for token, _ in best),
                tuple(math.log(value) for _, value in best),
            )
        return taken

    def distribution(self, logits: np.ndarray, mask: np.ndarray | None = None) -> Distribution:
        """The distribution that `sample` would draw from, after all stages. XTC makes its random
        decision; the random number of the draw stays in the stream.
        """
        return distribution(self._core, self._processed(logits)[1], mask, self._reasons)

    def sample_from(self, given: Distribution) -> int:
        """A token drawn from a distribution of this sampler."""
        token, share = given.draw(self._core.uniform())
        self._core.settle(share)
        return token

    def uniform(self) -> float:
        """The next number in [0, 1) of the random stream, for what a caller decides by chance."""
        return self._core.uniform()

    def pass_over(self, token: int) -> bool:
        """Advance as a `sample` would whose mask allows only `token`, without a row of logits.
        False, with nothing changed, if only a draw can tell: if processors, Python stages or
        `logprobs` need the row, or if bans leave nothing.
        """
        return not self.processors and self._top < 0 and self._core.pass_over(token)

    def processing(self, logits: np.ndarray) -> Callable[[], np.ndarray]:
        """The work of the processors on a row, as a function for any thread; pass its result to
        `processed`. It does not touch the sampler and holds the current tokens.
        """
        processors, tokens = self.processors, np.asarray(self._tokens, dtype=np.int32)
        raw = _row(logits)

        def work() -> np.ndarray:
            row = raw
            for processor in processors:
                row = row.copy() if row is raw else row
                out = processor(tokens.copy(), row)
                row = row if out is None else _logits(out)
            return row

        return work

    def processed(self, logits: np.ndarray, row: np.ndarray) -> None:
        """Take the result of the processors for `logits`: the next draw from these logits uses it
        and calls no processor.
        """
        self._ready = (logits, row)

    def _processed(self, logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(the original row, the row after the processors)."""
        raw = _row(logits)
        if not self.processors:
            return raw, raw
        ready, self._ready = self._ready, None
        if ready is not None and ready[0] is logits:
            return raw, ready[1]
        return raw, self.processing(raw)()

    def accept(self, token: int) -> None:
        """`token` is now part of the text; it counts towards min_tokens."""
        if type(token) is not int:
            if not isinstance(token, np.integer):
                raise SamplingError(f"accept: found {token!r:.50}, wanted a token id")
            token = int(token)
        self._core.accept(token)
        if self.processors:
            self._tokens.append(token)

    def accept_prompt(self, ids: Sequence[int] | np.ndarray) -> None:
        """Take the tokens of the prompt: penalties and DRY see them, min_tokens does not."""
        tokens = token_array("accept_prompt", ids, self.vocab_size)
        self._core.accept_prompt(tokens)
        if self.processors:
            self._tokens.extend(tokens.tolist())

    def set_history(self, ids: Sequence[int] | np.ndarray, *, generated: int) -> None:
        """Replace the history with `ids` (prompt and generated, oldest first). generated: how many
        tokens were generated, for min_tokens; more than `ids` if a context shift has removed some.

        For a session that was truncated or shifted. The random stream and mirostat's mu do not go
        back (keep a `fork` or a `state` for that).
        """
        tokens = token_array("set_history", ids, self.vocab_size)
        count = isinstance(generated, Integral) and not isinstance(generated, bool)
        if not count or not 0 <= generated < 1 << 31:
            raise SamplingError(
                f"set_history: found generated {generated!r:.40}, wanted an integer of 0 or more"
            )
        keep = self._core.chain.keep
        self._core.load(
            self._core.rng,
            self._core.mu,
            int(generated),
            tokens if keep < 0 else tokens[len(tokens) - min(keep, len(tokens)) :],
        )
        self._tokens = tokens.tolist() if self.processors else []

    def go_on_from(self, other: "Sampler", tokens: Sequence[int]) -> None:
        """Continue from another sampler with the same stages: its seed, random stream, mirostat's
        mu and history.

        tokens: all of them so far, for processors.
        """
        core = other._core
        self._core.load(core.rng, core.mu, core.generated, core.recent())
        self.seed, self._tokens = other.seed, list(tokens) if self.processors else []

    def reseed(self, seed: int) -> None:
        """Continue with the random stream of another seed, in [0, 2^64); the history and mirostat's
        mu stay.
        """
        core = self._core
        core.load(Xorshift64(seed).raw_state(), core.mu, core.generated, core.recent())

    @property
    def logprobs(self) -> Logprobs | None:
        """The log-probabilities of the last draw, if the sampler was made with `logprobs=k`."""
        return self._logprobs

    @property
    def top(self) -> int | None:
        """How many of the likeliest tokens each draw reports, None for no report."""
        return None if self._top < 0 else self._top

    @property
    def stage_names(self) -> tuple[str, ...]:
        """Names of the stages that run, in order."""
        return self._core.chain.names

    @property
    def generated(self) -> int:
        """How many tokens were accepted after the prompt."""
        return self._core.generated

    @property
    def rng(self) -> Xorshift64:
        """A copy of the random stream in its current state."""
        return Xorshift64.from_raw_state(self._core.rng)

    def fork(self) -> "Sampler":
        """An independent sampler in the same state, which would draw the same tokens."""
        twin = object.__new__(Sampler)
        for name in Sampler.__slots__:
            setattr(twin, name, getattr(self, name))
        twin._core = self._core.fork()
        twin._tokens = list(self._tokens)
        return twin

    def state(self) -> bytes:
        """Everything besides the config on which later draws depend: seed, random stream, mirostat,
        counts and history.
        """
        core = self._core
        history = (
            np.asarray(self._tokens, dtype="<i4")
            if self.processors
            else core.recent().astype("<i4")
        )
        head = _STATE.pack(
            _MAGIC,
            _VERSION,
            0,
            self.vocab_size,
            self._identity(),
            self.seed,
            core.rng,
            core.mu,
            core.generated,
            len(history),
        )
        body = head + history.tobytes()
        return body + struct.pack("<I", zlib.crc32(body))

    def restore(self, state: bytes) -> None:
        """Continue exactly from the `state()` of a sampler with the same config, vocabulary and
        token lists; SamplingError otherwise.
        """
        if not isinstance(state, (bytes, bytearray, memoryview)):
            raise SamplingError(f"sampler state: found {type(state).__name__}, wanted bytes")
        if len(state) < _STATE.size + 4 or state[:4] != _MAGIC:
            raise SamplingError(
                f"sampler state: found {bytes(state[:4])!r} and {len(state)} bytes, wanted "
                f"{_MAGIC!r} and at least {_STATE.size + 4}"
            )
        if zlib.crc32(state[:-4]) != struct.unpack("<I", state[-4:])[0]:
            raise SamplingError(
                "sampler state: found a wrong checksum, wanted the bytes as they were written"
            )
        _, version, zero, vocab, digest, seed, rng, mu, generated, length = _STATE.unpack_from(
            state
        )
        if version != _VERSION or zero != 0:
            raise SamplingError(f"sampler state: found version {version}, wanted {_VERSION}")
        if vocab != self.vocab_size or digest != self._identity():
            raise SamplingError(
                f"sampler state: found another config or vocabulary ({vocab} tokens), "
                f"wanted those of this sampler ({self.vocab_size})"
            )
        if (
            length < 0
            or len(state) != _STATE.size + 4 * length + 4
            or rng == 0
            or generated < 0
            or not np.isfinite(mu)
        ):
            raise SamplingError(
                f"sampler state: found {length} tokens in {len(state)} bytes, wanted them to agree"
            )
        history = np.frombuffer(state, "<i4", length, _STATE.size).astype(np.int32)
        self._core.load(rng, mu, generated, history)
        self.seed = seed
        self._tokens = history.tolist() if self.processors else []
        self._logprobs = None

    def _identity(self) -> bytes:
        """16 bytes that differ if a restored state would have another meaning; computed when first
        needed.
        """
        if not self._digest:
            lists = {name: values for name, values in self._lists.items() if name != "bias"}
            # left out, so that a field that comes later changes no state of before; the penalty is
            # the default of those days
            defaults = SamplerConfig(repetition_penalty=1.1).to_dict()
            asked = {
                name: value
                for name, value in self.config.to_dict().items()
                if value != defaults[name] and name != "seed"
            }
            facts = [asked, self.vocab_size, lists, self.stage_names]
            self._digest = hashlib.blake2b(
                json.dumps(facts, sort_keys=True).encode(), digest_size=16
            ).digest()
        return self._digest

    def _reasons(self) -> dict[str, Any]:
        """The current token lists, for the message when no token is left."""
        return {
            **self._lists,
            "late": self._lists["late"] if self._core.generated < self.config.min_tokens else (),
        }


def _row(logits: Any) -> np.ndarray:
    """A row of logits, as float32; SamplingError for what holds no numbers."""
    try:
        return np.ascontiguousarray(logits, dtype=np.float32)
    except (TypeError, ValueError):
        raise SamplingError(
            f"logits: found {type(logits).__name__}, wanted a row of real numbers"
        ) from None


def _logits(out: Any) -> np.ndarray:
    """What a processor returned, as float32; SamplingError for what is not an array of numbers."""
    made = np.asarray(out)
    if made.dtype.kind not in "fiu":
        raise SamplingError(
            f"processors: found {out!r:.60} returned, wanted logits (real numbers) or None"
        )
    return np.ascontiguousarray(made, dtype=np.float32)


def _with_own(
    built_in: tuple[SamplerStage, ...], own: Sequence[SamplerStage]
) -> tuple[SamplerStage, ...]:
    """Python stages go before the temperature (and mirostat), or last if there is none."""
    at = next(
        (i for i, stage in enumerate(built_in) if stage.name in ("temperature", "mirostat")),
        len(built_in),
    )
    return (*built_in[:at], *own, *built_in[at:])
