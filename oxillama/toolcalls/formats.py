"""How models spell tool calls: one `ToolCallFormat` per family, found by name or from a chat
template's source.

llama3    <|python_tag|>{"name": ..., "parameters": ...}, or the bare object as the whole reply; several separated by ";"
qwen      <tool_call>\\n{"name": ..., "arguments": ...}\\n</tool_call>, once per call
hermes    the same
mistral   [TOOL_CALLS][{"name": ..., "arguments": ...}, ...]; read also as mistral-args
mistral-args   [TOOL_CALLS]name[ARGS]{...}, once per call; read also as mistral
pythonic  [f(a=1, b="x"), g()] as the whole reply
command-r   <|START_ACTION|>[{"tool_name": ..., "parameters": ...}, ...]<|END_ACTION|>
granite   <|tool_call|>[{"name": ..., "arguments": ...}, ...]
deepseek  (V3, R1) each call as function<｜tool▁sep｜>name, a fence of json around {...}; deepseek-3.1: name<｜tool▁sep｜>{...}
function-tag   <function=name>{...}</function>, once per call (Llama 3.1 by its card, Functionary 3.1)
harmony   (gpt-oss) messages on channels, a call to functions.name on commentary; the whole reply is in that notation
custom    an opening and a closing text of your own around objects or arrays of objects: `Custom(open, close)`
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from oxillama.errors import ConfigError

ARGS = "[ARGS]"
CALL_ID = "[CALL_ID]"
_MARK = re.compile(r"<[|｜][^|｜<>]+[|｜]>")
_HARMONY_MARKS = (
    "<|start|>",
    "<|channel|>",
    "<|message|>",
    "<|constrain|>",
    "<|end|>",
    "<|call|>",
    "<|return|>",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCallFormat:
    """One way of spelling calls.

    open, close: the texts around calls, "" for none. bare: "json" or "python" where a reply may be
    calls without an opening text. style: what stands between: "object" (one JSON object per block),
    "array" (a JSON array of them), "named" (name, [ARGS], arguments), "python", "headed" (lead,
    name, middle, arguments, tail; without a lead one call per block) or "harmony". header: a named
    call is read whatever the style. name_key, arguments_keys: members of a call object; grammars
    write the first of the keys.
    """

    name: str
    open: str = ""
    close: str = ""
    bare: str = ""
    style: str = "object"
    header: bool = False
    name_key: str = "name"
    arguments_keys: tuple[str, ...] = ("arguments", "parameters")
    lead: str = ""
    middle: str = ""
    tail: str = ""

    @property
    def marks(self) -> tuple[str, ...]:
        """The texts around and inside calls that a vocabulary may have as tokens."""
        if self.style == "harmony":
            return _HARMONY_MARKS
        inside = _MARK.findall(self.lead + self.middle + self.tail)
        return tuple(
            dict.fromkeys(
                filter(
                    None,
                    (self.open, self.close, *((ARGS, CALL_ID) if self.header else ()), *inside),
                )
            )
        )

    def __post_init__(self) -> None:
        if not self.open and not self.bare:
            raise ConfigError("tool call format: open: found '', wanted the text that opens a call")
        if self.open.strip() != self.open or self.close.strip() != self.close:
            raise ConfigError(
                f"tool call format: found {self.open!r} and {self.close!r}, wanted texts without spaces around them"
            )
        if self.open and self.open == self.close:
            raise ConfigError(
                f"tool call format: open and close are both {self.open!r}, wanted different texts"
            )
        if not self.arguments_keys or self.name_key in self.arguments_keys:
            raise ConfigError(
                f"tool call format: keys {self.name_key!r} and {self.arguments_keys!r} found, wanted different ones"
            )


LLAMA3 = ToolCallFormat(
    name="llama3", open="<|python_tag|>", bare="json", arguments_keys=("parameters", "arguments")
)
QWEN = ToolCallFormat(name="qwen", open="<tool_call>", close="</tool_call>")
HERMES = ToolCallFormat(name="hermes", open="<tool_call>", close="</tool_call>")
MISTRAL = ToolCallFormat(name="mistral", open="[TOOL_CALLS]", style="array", header=True)
MISTRAL_ARGS = ToolCallFormat(name="mistral-args", open="[TOOL_CALLS]", style="named", header=True)
PYTHONIC = ToolCallFormat(name="pythonic", bare="python", style="python")
COMMAND_R = ToolCallFormat(
    name="command-r",
    open="<|START_ACTION|>",
    close="<|END_ACTION|>",
    style="array",
    name_key="tool_name",
    arguments_keys=("parameters",),
)
GRANITE = ToolCallFormat(name="granite", open="<|tool_call|>", style="array")
DEEPSEEK = ToolCallFormat(
    name="deepseek",
    open="<｜tool▁calls▁begin｜>",
    close="<｜tool▁calls▁end｜>",
    style="headed",
    lead="<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
    middle="\n```json\n",
    tail="\n```<｜tool▁call▁end｜>",
)
DEEPSEEK_31 = replace(
    DEEPSEEK,
    name="deepseek-3.1",
    lead="<｜tool▁call▁begin｜>",
    middle="<｜tool▁sep｜>",
    tail="<｜tool▁call▁end｜>",
)
FUNCTION_TAG = ToolCallFormat(
    name="function-tag", open="<function=", close="</function>", style="headed", middle=">"
)
HARMONY = ToolCallFormat(name="harmony", open="<|channel|>", style="harmony")

FORMATS = {
    each.name: each
    for each in (
        *(LLAMA3, QWEN, HERMES, MISTRAL, MISTRAL_ARGS, PYTHONIC, COMMAND_R, GRANITE),
        *(DEEPSEEK, DEEPSEEK_31, FUNCTION_TAG, HARMONY),
    )
}


def Custom(
    open: str,
    close: str = "",
    *,
    style: str = "object",
    name_key: str = "name",  # noqa: N802 (it stands beside the named formats)
    arguments_keys: tuple[str, ...] = ("arguments", "parameters"),
) -> ToolCallFormat:
    """A format with an opening and a closing text of your own; without a closing one, a block ends
    after its calls.
    """
    if style not in ("object", "array"):
        raise ConfigError(f"tool call format: style: found {style!r}, wanted 'object' or 'array'")
    return ToolCallFormat(
        name="custom",
        open=open,
        close=close,
        style=style,
        name_key=name_key,
        arguments_keys=tuple(arguments_keys),
    )


def format_of(format: str | ToolCallFormat) -> ToolCallFormat:
    """The format of a name; a format is returned as it is. ConfigError for an unknown name."""
    if isinstance(format, ToolCallFormat):
        return format
    if format not in FORMATS:
        raise ConfigError(
            f"tool call format: found {format!r}, wanted a ToolCallFormat or one of {', '.join(FORMATS)}"
        )
    return FORMATS[format]


def detect_format(template: str) -> ToolCallFormat | None:
    """The format that a chat template's source teaches its model, None where it teaches none that
    is known here.
    """
    if HARMONY.open in template and "<|message|>" in template and "functions." in template:
        return HARMONY
    if "<parameter=" in template or "<arg_key>" in template:
        return None  # arguments as tags: not known here, though other delimiters in it are
    if "<｜tool▁sep｜>" in template:
        return DEEPSEEK if "```json" in template else DEEPSEEK_31
    if "<tool_call>" in template:
        return (
            HERMES
            if re.search(r"function calling AI model|pydantic model json schema", template)
            else QWEN
        )
    if "[TOOL_CALLS]" in template:
        return MISTRAL_ARGS if ARGS in template else MISTRAL
    if COMMAND_R.open in template:
        return COMMAND_R
    if GRANITE.open in template:
        return GRANITE
    if FUNCTION_TAG.open in template:
        return FUNCTION_TAG
    if re.search(r"\[\s*func_name1?\s*\(", template):
        return PYTHONIC
    if "<|python_tag|>" in template or (
        "<|start_header_id|>" in template and '"parameters"' in template
    ):
        return LLAMA3
    return None
