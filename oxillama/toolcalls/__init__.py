"""Tool calls and reasoning in a model's text: found as they stream, constrained to schemas, dispatched, and answered.

  formats       how model families spell calls; which one a chat template teaches
  events        what is found in a reply, and `ToolCall`
  opening       where a call begins, and what may still become a beginning
  scan_json     one call written as JSON, as it streams
  scan_python   one call written as Python, as it streams
  detector      ToolCallDetector: text -> events, nothing lost
"""
from oxillama.toolcalls.detector import ToolCallDetector, detect_calls
from oxillama.toolcalls.events import CallArguments, CallFinished, CallMalformed, CallStarted, Event, Markup, Reasoning, Text, ToolCall
from oxillama.toolcalls.formats import FORMATS, Custom, ToolCallFormat, detect_format, format_of

__all__ = ["FORMATS", "CallArguments", "CallFinished", "CallMalformed", "CallStarted", "Custom", "Event", "Markup", "Reasoning", "Text", "ToolCall",
           "ToolCallDetector", "ToolCallFormat", "detect_calls", "detect_format", "format_of"]
