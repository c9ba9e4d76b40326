"""How models spell tool calls: one `ToolCallFormat` per family, found by name or in a chat
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
kimi-k2   <|tool_call_begin|>functions.NAME:NUMBER<|tool_call_argument_begin|>{...}<|tool_call_end|>, calls in one section
apriel    <tool_calls>[{"name": ..., "arguments": ...}, ...]</tool_calls>
nemotron  <TOOLCALL>[{"name": ..., "arguments": ...}, ...]</TOOLCALL>
qwen-coder   <tool_call><function=NAME><parameter=KEY>value</parameter>...</function></tool_call>, values on lines of their own
seed-oss  the same in <seed:tool_call>, values inline
glm       (4.5 and later) <tool_call>NAME<arg_key>KEY</arg_key><arg_value>value</arg_value>...</tool_call>
minimax-m2   <minimax:tool_call><invoke name="NAME"><parameter name="KEY">value</parameter>...</invoke>...</minimax:tool_call>
minimax-m3   <tool_call><invoke name="NAME"><KEY>value</KEY>...</invoke>...</tool_call>, ]<]minimax[>[ before every tag
custom    an opening and a closing text of your own around objects or arrays of objects: `Custom(open, close)`
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from oxillama.errors import ConfigError

ARGS = "[ARGS]"
CALL_ID = "[CALL_ID]"
# In `middle`: a number. In `value_tail`: the value's key.
DIGITS, KEY = "\x04", "\x05"
_MINIMAX = "]<]minimax[>["
_MARK = re.compile(rf"<[|｜][^|｜<>]+[|｜]>|{re.escape(_MINIMAX)}")
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
    name, middle, arguments, tail; without a lead one call per block), "tags" (lead, name, middle,
    arguments as tags, tail) or "harmony". header: a named call is read whatever the style. name_key,
    arguments_keys: members of a call object; grammars write the first of the keys.

    Of style "tags", an argument is key_lead, key, key_tail, value_lead, value, value_tail; lines:
    values stand on lines of their own; together: the calls of a reply share one block. A text is
    written as it is, any other value as JSON.
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
    key_lead: str = ""
    key_tail: str = ""
    value_lead: str = ""
    value_tail: str = ""
    lines: bool = False
    together: bool = False

    @property
    def inner(self) -> str:
        """What opens a call inside a block, and a call whose block has no opening; "" for none."""
        if self.style not in ("headed", "tags") or not self.lead:
            return ""
        mark = _MARK.match(self.lead)
        return mark.group() if mark and mark.group() != _MINIMAX else self.lead.strip()

    @property
    def marks(self) -> tuple[str, ...]:
        """The texts around and inside calls that a vocabulary may have as tokens."""
        if self.style == "harmony":
            return _HARMONY_MARKS
        inside = _MARK.findall(self.open + self.lead + self.middle + self.tail)
        tags = (self.lead, self.tail, self.key_lead, self.key_tail, self.value_lead)
        if self.style == "tags":
            inside += [*map(str.strip, tags), *((self.value_tail,) * (KEY not in self.value_tail))]
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
KIMI = ToolCallFormat(
    name="kimi-k2",
    open="<|tool_calls_section_begin|>",
    close="<|tool_calls_section_end|>",
    style="headed",
    lead="<|tool_call_begin|>functions.",
    middle=f":{DIGITS}<|tool_call_argument_begin|>",
    tail="<|tool_call_end|>",
)
APRIEL = ToolCallFormat(name="apriel", open="<tool_calls>", close="</tool_calls>", style="array")
NEMOTRON = ToolCallFormat(name="nemotron", open="<TOOLCALL>", close="</TOOLCALL>", style="array")
QWEN_CODER = ToolCallFormat(
    name="qwen-coder",
    open="<tool_call>",
    close="</tool_call>",
    style="tags",
    lead="<function=",
    middle=">",
    tail="</function>",
    key_lead="<parameter=",
    key_tail=">",
    value_tail="</parameter>",
    lines=True,
)
SEED = replace(
    QWEN_CODER,
    name="seed-oss",
    open="<seed:tool_call>",
    close="</seed:tool_call>",
    lines=False,
    together=True,
)
GLM = ToolCallFormat(
    name="glm",
    open="<tool_call>",
    close="</tool_call>",
    style="tags",
    key_lead="<arg_key>",
    key_tail="</arg_key>",
    value_lead="<arg_value>",
    value_tail="</arg_value>",
)
MINIMAX_M2 = ToolCallFormat(
    name="minimax-m2",
    open="<minimax:tool_call>",
    close="</minimax:tool_call>",
    style="tags",
    lead='<invoke name="',
    middle='">',
    tail="</invoke>",
    key_lead='<parameter name="',
    key_tail='">',
    value_tail="</parameter>",
    together=True,
)
MINIMAX_M3 = replace(
    MINIMAX_M2,
    name="minimax-m3",
    open=f"{_MINIMAX}<tool_call>",
    close=f"{_MINIMAX}</tool_call>",
    lead=f'{_MINIMAX}<invoke name="',
    tail=f"{_MINIMAX}</invoke>",
    key_lead=f"{_MINIMAX}<",
    key_tail=">",
    value_tail=f"{_MINIMAX}</{KEY}>",
)
HARMONY = ToolCallFormat(name="harmony", open="<|channel|>", style="harmony")

FORMATS = {
    each.name: each
    for each in (
        *(LLAMA3, QWEN, HERMES, MISTRAL, MISTRAL_ARGS, PYTHONIC, COMMAND_R, GRANITE),
        *(DEEPSEEK, DEEPSEEK_31, FUNCTION_TAG, HARMONY, KIMI, APRIEL, NEMOTRON),
        *(QWEN_CODER, SEED, GLM, MINIMAX_M2, MINIMAX_M3),
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


def taught_format(template: str) -> ToolCallFormat | None:
    """The format that a chat template's source speaks of, None where it speaks of none that is
    known here.
    """
    if HARMONY.open in template and "<|message|>" in template and "functions." in template:
        return HARMONY
    if _MINIMAX in template:
        return MINIMAX_M3 if "<invoke name=" in template else None
    for each in (MINIMAX_M2, SEED):
        if each.open in template:
            return each
    if "<|tool_call_argument_begin|>" in template or "tool_declare<|im_middle|>" in template:
        return KIMI
    if "<arg_key>" in template:
        return GLM if GLM.open in template else None
    if "<parameter=" in template:
        return QWEN_CODER if "<function=" in template and QWEN_CODER.open in template else None
    if "<｜tool▁sep｜>" in template:
        return DEEPSEEK if "```json" in template else DEEPSEEK_31
    for each in (APRIEL, NEMOTRON):
        if f"{each.open}[" in template:
            return each
    if QWEN.open in template:
        hermes = re.search(r"function calling AI model|pydantic model json schema", template)
        return HERMES if hermes else QWEN
    if MISTRAL.open in template:
        return MISTRAL_ARGS if ARGS in template else MISTRAL
    for each in (COMMAND_R, GRANITE, FUNCTION_TAG):
        if each.open in template:
            return each
    if re.search(r"\[\s*func_name1?\s*\(", template):
        return PYTHONIC
    if "<|python_tag|>" in template or (
        "<|start_header_id|>" in template and '"parameters"' in template
    ):
        return LLAMA3
    return None
