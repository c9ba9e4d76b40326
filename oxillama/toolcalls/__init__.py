"""Tool calls and reasoning in a model's text: found while it streams, constrained to schemas,
dispatched, and answered.

formats    the notations of model families; the notation that a chat template teaches
tools      Tool: name, description and parameters
checking   ArgumentChecker: the errors in the arguments of a call
events     the events of a reply, and ToolCall
openings   where calls begin in a growing text
literals   values in the notations of calls
calls      JsonCall, PythonCall, TagCall, QuotedCall: one call, as it streams
streaming  StreamReader: what readers of a streamed reply have in common
reader     ToolCallDetector: text -> events
harmony    HarmonyReader: the same for messages on channels (gpt-oss)
reasoning  ReasoningSplitter: separates reasoning regions
reply      ReplyParser: reasoning, answer and calls of one reply; ChatEvent
quoted     a grammar of arguments with bare keys and special quotes
call_nodes CallNodes: the grammar nodes of calls in one notation
grammar    ToolCallGrammar, ReplyGrammar: whole replies that are calls
triggered  TriggeredGrammar: free text in which calls are constrained
dispatch   ToolDispatcher, run_until_answer
messages   messages in the form a chat template expects
inline     tools and calls in the text of messages
plan       ChatPlanner, ChatPlan: constraint and parsing of one chat
writer     ChatWriter: a conversation as its chat template writes it
"""

from oxillama.toolcalls.dispatch import (
    Answer,
    NoOpDispatcher,
    ToolDispatcher,
    ToolResult,
    run_until_answer,
    run_until_answer_async,
)
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
from oxillama.toolcalls.formats import FORMATS, Custom, ToolCallFormat, format_of
from oxillama.toolcalls.grammar import (
    ReplyGrammar,
    ToolCallGrammar,
    with_reasoning,
)
from oxillama.toolcalls.harmony import HarmonyReader
from oxillama.toolcalls.messages import MessageForm, check_messages
from oxillama.toolcalls.plan import ChatPlan, ChatPlanner, detect_format, plan_chat
from oxillama.toolcalls.reader import ToolCallDetector, detect_calls
from oxillama.toolcalls.reasoning import (
    THINK,
    ReasoningFormat,
    ReasoningSplitter,
    detect_reasoning,
    opened_by,
    split_reasoning,
)
from oxillama.toolcalls.reply import ChatEvent, ChatEventBuilder, Reply, ReplyParser, parse_reply
from oxillama.toolcalls.tools import Tool, tool_from_function, tool_of
from oxillama.toolcalls.triggered import (
    TriggeredGrammar,
    TriggeredState,
    constraint_of,
    restore_state,
)
from oxillama.toolcalls.writer import ChatWriter

__all__ = [
    "FORMATS",
    "THINK",
    "Answer",
    "CallArguments",
    "CallFinished",
    "CallMalformed",
    "CallStarted",
    "ChatEvent",
    "ChatWriter",
    "ChatPlan",
    "ChatPlanner",
    "Custom",
    "Event",
    "HarmonyReader",
    "Markup",
    "MessageForm",
    "NoOpDispatcher",
    "ChatEventBuilder",
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
    "check_messages",
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
