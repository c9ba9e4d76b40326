"""Tool calls and reasoning in a model's text: found as they stream, constrained to schemas,
dispatched, and answered.

formats       how model families spell calls; which one a chat template teaches
events        what is found in a reply, and `ToolCall`
opening       where a call begins, and what may still become a beginning
places        the loop of a reader that stands in places
scan          what the readers of both notations share
scan_json     one call written as JSON, as it streams
scan_python   one call written as Python, as it streams
harmony       replies made of messages on channels (gpt-oss)
detector      ToolCallDetector: text -> events, nothing lost
reasoning     ReasoningSplitter: reasoning regions split off, and left out of grammars
deltas        ChatEvent: a streamed reply, step by step
reply         ReplyParser: reasoning, answer and calls of one reply
tools         Tool: name, description and parameters, from a mapping or a Python function
compose       grammars made of grammars
constraint    ToolCallGrammar: calls that follow the tools' schemas
triggered     TriggeredGrammar: the same, from the opening of a call on
saved         constraints told in JSON, and states restored
validate      what is wrong with arguments
dispatch      ToolDispatcher, ToolResult
messages      messages as a chat template takes them
rounds        run_until_answer, run_until_answer_async
beside        calls beside an answer's own constraint
chat          ChatPlanner, ChatPlan: constraint and reading of one chat
"""

from oxillama.toolcalls.chat import ChatPlan, ChatPlanner, plan_chat
from oxillama.toolcalls.constraint import ReplyGrammar, ToolCallGrammar
from oxillama.toolcalls.deltas import ChatEvent, Parts
from oxillama.toolcalls.detector import ToolCallDetector, detect_calls
from oxillama.toolcalls.dispatch import NoOpDispatcher, ToolDispatcher, ToolResult
from oxillama.toolcalls.events import (
    CallArguments,
    CallFinished,
    CallMalformed,
    CallStarted,
    Event,
    Markup,
    Reasoning,
    Text,
    ToolCall,
)
from oxillama.toolcalls.formats import FORMATS, Custom, ToolCallFormat, detect_format, format_of
from oxillama.toolcalls.harmony import HarmonyReader
from oxillama.toolcalls.messages import MessageForm
from oxillama.toolcalls.reasoning import (
    THINK,
    ReasoningFormat,
    ReasoningSplitter,
    detect_reasoning,
    opened_by,
    split_reasoning,
    with_reasoning,
)
from oxillama.toolcalls.reply import Reply, ReplyParser, parse_reply
from oxillama.toolcalls.rounds import Answer, run_until_answer, run_until_answer_async
from oxillama.toolcalls.saved import constraint_of, restore_state
from oxillama.toolcalls.tools import Tool, tool_from_function, tool_of
from oxillama.toolcalls.triggered import TriggeredGrammar, TriggeredState

__all__ = [
    "FORMATS",
    "THINK",
    "Answer",
    "CallArguments",
    "CallFinished",
    "CallMalformed",
    "CallStarted",
    "ChatEvent",
    "ChatPlan",
    "ChatPlanner",
    "Custom",
    "Event",
    "HarmonyReader",
    "Markup",
    "MessageForm",
    "NoOpDispatcher",
    "Parts",
    "Reasoning",
    "ReasoningFormat",
    "ReasoningSplitter",
    "Reply",
    "ReplyGrammar",
    "ReplyParser",
    "Text",
    "Tool",
    "ToolCall",
    "ToolCallDetector",
    "ToolCallFormat",
    "ToolCallGrammar",
    "ToolDispatcher",
    "ToolResult",
    "TriggeredGrammar",
    "TriggeredState",
    "constraint_of",
    "detect_calls",
    "detect_format",
    "detect_reasoning",
    "format_of",
    "opened_by",
    "parse_reply",
    "plan_chat",
    "restore_state",
    "run_until_answer",
    "run_until_answer_async",
    "split_reasoning",
    "tool_from_function",
    "tool_of",
    "with_reasoning",
]
