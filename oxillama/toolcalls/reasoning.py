"""Reasoning regions, such as `<think>...</think>`: separated from a streamed reply, and excluded
from constraints.

A region is recognised only at the beginning of a reply: after nothing but spaces, or already opened
by the prompt. Delimiters that appear later are text.
"""

from __future__ import annotations

from dataclasses import dataclass

from oxillama.arguments import checked_flag
from oxillama.errors import ConfigError
from oxillama.grammar.composer import partial
from oxillama.tokenizer.provenance import marks_of
from oxillama.toolcalls.events import Event, Markup, Reasoning, Text, joined
from oxillama.toolcalls.formats import marks_in, spelled_out
from oxillama.toolcalls.openings import SPACE


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """The texts around a region."""

    open: str
    close: str

    def __post_init__(self) -> None:
        texts = isinstance(self.open, str) and isinstance(self.close, str)
        if not texts or not self.open or not self.close or self.open[0] in SPACE:
            raise ConfigError(
                f"reasoning format: found {self.open!r} and {self.close!r}, wanted two texts that "
                "do not begin with a space"
            )

    @property
    def marks(self) -> tuple[str, ...]:
        """The texts around regions, and their parts, that may be tokens of a vocabulary."""
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
    """The reasoning format that a chat template's source mentions, None without one."""
    source = spelled_out(template)
    return next((each for each in REASONING_FORMATS if each.close in source), None)


def opened_by(prompt: str, format: ReasoningFormat = THINK) -> bool:
    """Whether a rendered prompt ends inside a region, which the reply continues. Text of messages
    at the prompt's end does not open one.
    """
    end = prompt.rstrip(SPACE)
    return end.endswith(format.open) and 1 not in marks_of(end[-len(format.open) :])


def closed_by(prompt: str, format: ReasoningFormat = THINK) -> bool:
    """Whether a rendered prompt ends after a region, so that the reply's reasoning is over."""
    end = prompt.rstrip(SPACE)
    return end.endswith(format.close) and 1 not in marks_of(end[-len(format.close) :])


def implied_by(template: str, format: ReasoningFormat = THINK) -> bool:
    """Whether the model of a chat template starts to reason without an opening delimiter, like
    DeepSeek R1: such templates mention only the closing one.
    """
    return (
        "<｜Assistant｜>" in template and format.close in template and format.open not in template
    )


class ReasoningSplitter:
    """Splits a reply that arrives in any pieces into `Reasoning`, `Text` and `Markup` whose raw
    texts, joined, are the reply.
    """

    def __init__(self, format: ReasoningFormat = THINK, *, opened: bool = False) -> None:
        if not isinstance(format, ReasoningFormat):
            raise ConfigError(
                f"format: found {format!r:.50}, wanted a ReasoningFormat, of which "
                "toolcalls.reasoning.REASONING_FORMATS has some"
            )
        self.format = format
        self._lead: list[str] = []  # white space before anything else
        self._held = ""
        self._place = "opened" if checked_flag("opened", opened) else "before"

    @property
    def over(self) -> bool:
        """Whether the region has ended (or there is none), so that everything later is text."""
        return self._place == "after"

    def feed(self, text: str) -> list[Event]:
        """The events that this piece completes."""
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
        """The position: "before" a region, "opened" (at the beginning of one that the prompt has
        opened), "inside" or "after" it.
        """
        return self._place

    @classmethod
    def at(cls, format: ReasoningFormat, place: str, held: str) -> ReasoningSplitter:
        """A splitter at a position, with the text it holds back."""
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
        """The text held back. A region without a closing delimiter is reasoning to its end."""
        kind = Reasoning if self._place in ("opened", "inside") else Text
        self._with_lead()
        return joined([kind(self._take(len(self._held)))])

    def _before(self, out: list[Event]) -> None:
        """At the beginning: look for the opening delimiter, even if the prompt has opened the
        region.
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
    """(the reasoning, the answer) of a complete reply, as written, without the delimiters."""
    splitter = ReasoningSplitter(format, opened=opened)
    events = splitter.feed(text) + splitter.finish()
    reasoning = "".join(event.raw for event in events if isinstance(event, Reasoning))
    return reasoning, "".join(event.raw for event in events if isinstance(event, Text))
