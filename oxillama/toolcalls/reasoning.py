"""Reasoning regions: `<think>...</think>` and its kin, split off as they stream, and left out of
constraints.

A region stands at the beginning of a reply: after nothing but spaces, or already opened by the
prompt. What mentions the delimiters later is text.
"""

from __future__ import annotations

from dataclasses import dataclass

from oxillama.errors import ConfigError
from oxillama.grammar.composer import partial
from oxillama.tokenizer.provenance import marks_of
from oxillama.toolcalls.events import Event, Markup, Reasoning, Text, joined
from oxillama.toolcalls.formats import marks_in, spelled_out
from oxillama.toolcalls.reader import SPACE


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """The texts around a region."""

    open: str
    close: str

    def __post_init__(self) -> None:
        if not self.open or not self.close or self.open[0] in SPACE:
            raise ConfigError(
                f"reasoning format: found {self.open!r} and {self.close!r}, wanted two texts that "
                "do not begin with a space"
            )

    @property
    def marks(self) -> tuple[str, ...]:
        """The texts around regions, whole and in part, that a vocabulary may have as tokens."""
        return (self.open, self.close, *marks_in(self.open + self.close))


THINK = ReasoningFormat("<think>", "</think>")
REASONING_FORMATS = (
    THINK,
    ReasoningFormat("<|START_THINKING|>", "<|END_THINKING|>"),
    ReasoningFormat("[THINK]", "[/THINK]"),
    ReasoningFormat("<thinking>", "</thinking>"),
    ReasoningFormat("<reasoning>", "</reasoning>"),
    ReasoningFormat("<thought>", "</thought>"),
    ReasoningFormat("<seed:think>", "</seed:think>"),
    ReasoningFormat("<think:opensource>", "</think:opensource>"),
    ReasoningFormat("<|channel>thought", "<channel|>"),
    ReasoningFormat("<|inner_prefix|>", "<|inner_suffix|>"),
)


def detect_reasoning(template: str) -> ReasoningFormat | None:
    """The regions that a chat template's source knows of, None where it knows none."""
    source = spelled_out(template)
    return next((each for each in REASONING_FORMATS if each.close in source), None)


def opened_by(prompt: str, format: ReasoningFormat = THINK) -> bool:
    """Whether a rendered prompt ends inside a region, which the reply then goes on with. What a
    message says at the prompt's end opens none.
    """
    end = prompt.rstrip(SPACE)
    return end.endswith(format.open) and 1 not in marks_of(end[-len(format.open) :])


def closed_by(prompt: str, format: ReasoningFormat = THINK) -> bool:
    """Whether a rendered prompt ends after a region, so that the reply's reasoning is over."""
    end = prompt.rstrip(SPACE)
    return end.endswith(format.close) and 1 not in marks_of(end[-len(format.close) :])


def implied_by(template: str, format: ReasoningFormat = THINK) -> bool:
    """Whether the model of a chat template reasons without a beginning: DeepSeek R1 and its kin,
    whose templates know regions by their end alone.
    """
    return (
        "<｜Assistant｜>" in template and format.close in template and format.open not in template
    )


class ReasoningSplitter:
    """Feeds on a reply in any pieces; gives out `Reasoning`, `Text` and `Markup` whose raw texts,
    joined, are the reply.
    """

    def __init__(self, format: ReasoningFormat = THINK, *, opened: bool = False) -> None:
        self.format = format
        self._lead: list[str] = []  # white space before anything else
        self._held = ""
        self._place = "opened" if opened else "before"

    @property
    def over(self) -> bool:
        """Whether the region is over (or there is none): all that comes is text."""
        return self._place == "after"

    def feed(self, text: str) -> list[Event]:
        """The events that this piece makes certain."""
        if not isinstance(text, str):
            raise ConfigError(f"text: found {type(text).__name__}, wanted str")
        if self._place in ("before", "opened") and not self._held:
            rest = text.lstrip(SPACE)
            self._lead.append(text[: len(text) - len(rest)])
            text = rest
        self._held += text
        out: list[Event] = []
        if self._place in ("before", "opened"):
            self._before(out)
        if self._place == "inside":
            self._inside(out)
        if self._place == "after":
            out.append(Text(self._take(len(self._held))))
        return joined(out)

    @property
    def held(self) -> str:
        """The end of the text that may be the beginning of a delimiter, or white space before
        it.
        """
        return "".join(self._lead) + self._held

    @property
    def place(self) -> str:
        """Where it stands: "before" a region, "opened" (at the beginning of one that the prompt has
        opened), "inside" or "after" it.
        """
        return self._place

    @classmethod
    def at(cls, format: ReasoningFormat, place: str, held: str) -> ReasoningSplitter:
        """A splitter that stands at a place and holds back the end of a text."""
        if place not in ("before", "opened", "inside", "after") or not isinstance(held, str):
            raise ConfigError(
                f"reasoning: found {place!r} and {type(held).__name__}, wanted 'before', 'opened', "
                "'inside' or 'after' and a text"
            )
        made = cls(format)
        made._place, made._held = place, held
        if place in ("before", "opened"):
            made._held = held.lstrip(SPACE)
            made._lead.append(held[: len(held) - len(made._held)])
        return made

    def fork(self) -> ReasoningSplitter:
        """An independent splitter at the same place."""
        return ReasoningSplitter.at(self.format, self._place, self.held)

    def finish(self) -> list[Event]:
        """What was held back: a region that was never closed is reasoning to its end."""
        kind = Reasoning if self._place in ("opened", "inside") else Text
        self._with_lead()
        return joined([kind(self._take(len(self._held)))])

    def _before(self, out: list[Event]) -> None:
        """At the beginning: the text that opens a region, though the prompt has opened it
        already.
        """
        if self._held.startswith(self.format.open):
            self._with_lead()
            end = self._held.index(self.format.open) + len(self.format.open)
            out.append(Markup(self._take(end)))
            self._place = "inside"
        elif not self.format.open.startswith(self._held):
            self._with_lead()
            self._place = "inside" if self._place == "opened" else "after"

    def _with_lead(self) -> None:
        self._held, self._lead = self.held, []

    def _inside(self, out: list[Event]) -> None:
        at = self._held.find(self.format.close)
        if at >= 0:
            out += [Reasoning(self._take(at)), Markup(self._take(len(self.format.close)))]
            self._place = "after"
        else:
            out.append(
                Reasoning(self._take(len(self._held) - partial(self._held, self.format.close)))
            )

    def _take(self, size: int) -> str:
        taken, self._held = self._held[:size], self._held[size:]
        return taken


def split_reasoning(
    text: str, format: ReasoningFormat = THINK, *, opened: bool = False
) -> tuple[str, str]:
    """(the reasoning, the answer) of a whole reply, each as it is written, without the
    delimiters.
    """
    splitter = ReasoningSplitter(format, opened=opened)
    events = splitter.feed(text) + splitter.finish()
    reasoning = "".join(event.raw for event in events if isinstance(event, Reasoning))
    return reasoning, "".join(event.raw for event in events if isinstance(event, Text))
