"""How models spell tool calls: one `ToolCallFormat` per family, found by name or in a chat
template's source.

llama3        <|python_tag|>{"name": ..., "parameters": ...}, or the bare object as the whole reply;
              several separated by ";"
qwen          <tool_call>\\n{"name": ..., "arguments": ...}\\n</tool_call>, once per call
hermes        the same
mistral       [TOOL_CALLS][{"name": ..., "arguments": ...}, ...]; read also as mistral-args
mistral-args  [TOOL_CALLS]name[ARGS]{...}, once per call; read also as mistral
pythonic      [f(a=1, b="x"), g()] as the whole reply
command-r     <|START_ACTION|>[{"tool_name": ..., "parameters": ...}, ...]<|END_ACTION|>
granite       <|tool_call|>[{"name": ..., "arguments": ...}, ...]
deepseek      (V3, R1) each call as function<｜tool▁sep｜>name, a fence of json
              around {...}
deepseek-3.1  each call as name<｜tool▁sep｜>{...}
function-tag  <function=name>{...}</function>, once per call (Llama 3.1 by its card,
              Functionary 3.1)
harmony       (gpt-oss) messages on channels, a call to functions.name on commentary; the whole
              reply is in that notation
kimi-k2       <|tool_call_begin|>functions.NAME:NUMBER<|tool_call_argument_begin|>{...}
              <|tool_call_end|>, calls in one section
apriel        <tool_calls>[{"name": ..., "arguments": ...}, ...]</tool_calls>
nemotron      <TOOLCALL>[{"name": ..., "arguments": ...}, ...]</TOOLCALL>
qwen-coder    <tool_call><function=NAME><parameter=KEY>value</parameter>...</function></tool_call>,
              values on lines of their own
seed-oss      the same in <seed:tool_call>, values inline
glm           (4.5 and later) <tool_call>NAME<arg_key>KEY</arg_key><arg_value>value</arg_value>...
              </tool_call>
minimax-m2    <minimax:tool_call><invoke name="NAME"><parameter name="KEY">value</parameter>...
              </invoke>...</minimax:tool_call>
minimax-m1    <tool_calls>\\n{"name": ..., "arguments": ...}\\n...</tool_calls>, an object a line
minimax-m3    <tool_call><invoke name="NAME"><KEY>value</KEY>...</invoke>...</tool_call>,
              ]<]minimax[>[ before every tag
dsml          (DeepSeek V3.2) <｜DSML｜function_calls><｜DSML｜invoke name="NAME">
              <｜DSML｜parameter name="KEY" string="true|false">value</｜DSML｜parameter>...
              </｜DSML｜invoke>...</｜DSML｜function_calls>; what is no string is JSON
dsml-4        (DeepSeek V4) the same in <｜DSML｜tool_calls>
hy3           <tool_calls:opensource><tool_call:opensource>NAME<tool_sep:opensource>
              <arg_key:opensource>KEY</arg_key:opensource><arg_value:opensource>value
              </arg_value:opensource>...</tool_call:opensource>...</tool_calls:opensource>
minicpm5      <function name="NAME"><param name="KEY">value</param>...</function>, a value that
              begins with <![CDATA[ ends with ]]>
lfm2          <|tool_call_start|>[f(a=1, b="x"), g()]<|tool_call_end|>
gemma4        <|tool_call>call:NAME{KEY:<|"|>text<|"|>,KEY:3,KEY:[...]}<tool_call|>, once per call:
              keys stand bare, texts between <|"|> as they are
apertus       <|tools_prefix|>[{"NAME": {...}}, ...]<|tools_suffix|>
gigachat      (3.1) <|function_call|>{"name": ..., "arguments": ...}
gigachat-3    the same in a message to "function call"
solar         <|tool_calls|><|tool_call:begin|>ID<|tool_call:name|>NAME<|tool_call:args|>{...}
              <|tool_call:end|>, once per call
custom        an opening and a closing text of your own around objects or arrays of objects:
              `Custom(open, close)`
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from oxillama.errors import ConfigError

ARGS = "[ARGS]"
CALL_ID = "[CALL_ID]"
# In `middle`: a number. In `value_tail`: the value's key. In `key_tail`: "true" before a text,
# "false" before JSON. In `lead`: an identifier that the model makes up.
DIGITS, KEY, STRING, IDENTIFIER = "\x04", "\x05", "\x06", "\x07"
CDATA = ("<![CDATA[", "]]>")
_MINIMAX, _DSML = "]<]minimax[>[", "｜DSML｜"
_MARK = re.compile(rf"<[|｜][^|｜<>]+[|｜]>|<\|[^|<>]+>|<[^|<>]+\|>|{re.escape(_MINIMAX)}|{_DSML}")
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
    """One notation of calls.

    The texts around calls:

    - `open`, `close`: before and after the calls, "" for none.
    - `bare`: "json" or "python" if a reply may be calls without an opening text.
    - `together`: the calls of a reply share one block.

    `style` is the form between them:

    - "object": one JSON object per block. "array": a JSON array of them.
    - "named": name, [ARGS], arguments. "python": Python calls.
    - "headed": lead, name, middle, arguments, tail; without a lead one call per block.
    - "tags": lead, name, middle, arguments as tags, tail. An argument is key_lead, key, key_tail,
      value_lead, value, value_tail. A text is written as it is, any other value as JSON.
    - "harmony": messages on channels.

    Details of a style:

    - `header`: a named call is read in any style.
    - `name_key`, `arguments_keys`: members of a call object; grammars write the first of the keys.
      Without a name_key the only key of an object is the name and its value the arguments.
    - `quote`: in style "headed", the quotes around a text inside the arguments, which are then not
      JSON: keys are bare, and texts are written unescaped.
    - `lines`: values are on separate lines. `cdata`: a value may be in a section of character data.
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
    cdata: bool = False
    quote: str = ""

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
        inside = marks_in(self.open + self.lead + self.middle + self.tail + self.quote)
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
                f"tool call format: found {self.open!r} and {self.close!r}, wanted texts without "
                "spaces around them"
            )
        if self.open and self.open == self.close:
            raise ConfigError(
                f"tool call format: open and close are both {self.open!r}, wanted different texts"
            )
        if self.quote and self.style != "headed":
            raise ConfigError(
                f"tool call format: quote: found {self.quote!r} in style {self.style!r}, wanted ''"
            )
        if not self.arguments_keys or self.name_key in self.arguments_keys:
            raise ConfigError(
                f"tool call format: keys {self.name_key!r} and {self.arguments_keys!r} found, "
                "wanted different ones"
            )


def marks_in(text: str) -> list[str]:
    """The texts in a text that vocabularies usually have as control tokens, in their order."""
    return _MARK.findall(text)


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
MINIMAX_M1 = ToolCallFormat(
    name="minimax-m1", open="<tool_calls>", close="</tool_calls>", together=True
)
DSML = ToolCallFormat(
    name="dsml",
    open=f"<{_DSML}function_calls>",
    close=f"</{_DSML}function_calls>",
    style="tags",
    lead=f'<{_DSML}invoke name="',
    middle='">',
    tail=f"</{_DSML}invoke>",
    key_lead=f'<{_DSML}parameter name="',
    key_tail=f'" string="{STRING}">',
    value_tail=f"</{_DSML}parameter>",
    together=True,
)
DSML_4 = replace(DSML, name="dsml-4", open=f"<{_DSML}tool_calls>", close=f"</{_DSML}tool_calls>")
HY3 = ToolCallFormat(
    name="hy3",
    open="<tool_calls:opensource>",
    close="</tool_calls:opensource>",
    style="tags",
    lead="<tool_call:opensource>",
    middle="<tool_sep:opensource>",
    tail="</tool_call:opensource>",
    key_lead="<arg_key:opensource>",
    key_tail="</arg_key:opensource>",
    value_lead="<arg_value:opensource>",
    value_tail="</arg_value:opensource>",
    together=True,
)
MINICPM5 = ToolCallFormat(
    name="minicpm5",
    open='<function name="',
    close="</function>",
    style="tags",
    middle='">',
    key_lead='<param name="',
    key_tail='">',
    value_tail="</param>",
    cdata=True,
)
LFM2 = ToolCallFormat(
    name="lfm2", open="<|tool_call_start|>", close="<|tool_call_end|>", style="python"
)
GEMMA4 = ToolCallFormat(
    name="gemma4",
    open="<|tool_call>call:",
    close="<tool_call|>",
    style="headed",
    quote='<|"|>',
)
APERTUS = ToolCallFormat(
    name="apertus",
    open="<|tools_prefix|>",
    close="<|tools_suffix|>",
    style="array",
    name_key="",
)
GIGACHAT = ToolCallFormat(name="gigachat", open="<|function_call|>")
GIGACHAT_3 = ToolCallFormat(name="gigachat-3", open="<|message_sep|>\n\nfunction call<|role_sep|>")
SOLAR = ToolCallFormat(
    name="solar",
    open="<|tool_calls|>",
    style="headed",
    lead=f"<|tool_call:begin|>{IDENTIFIER}<|tool_call:name|>",
    middle="<|tool_call:args|>",
    tail="<|tool_call:end|>",
)
HARMONY = ToolCallFormat(name="harmony", open="<|channel|>", style="harmony")

FORMATS = {
    each.name: each
    for each in (
        *(LLAMA3, QWEN, HERMES, MISTRAL, MISTRAL_ARGS, PYTHONIC, COMMAND_R, GRANITE),
        *(DEEPSEEK, DEEPSEEK_31, FUNCTION_TAG, HARMONY, KIMI, APRIEL, NEMOTRON),
        *(QWEN_CODER, SEED, GLM, MINIMAX_M1, MINIMAX_M2, MINIMAX_M3, DSML, DSML_4, HY3, MINICPM5),
        *(LFM2, GEMMA4, APERTUS, GIGACHAT, GIGACHAT_3, SOLAR),
    )
}


def Custom(
    open: str,
    close: str = "",
    *,
    style: str = "object",
    name_key: str = "name",
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
    """The format of a name; a format is returned unchanged. ConfigError for an unknown name."""
    if isinstance(format, ToolCallFormat):
        return format
    if not isinstance(format, str) or format not in FORMATS:
        raise ConfigError(
            f"tool call format: found {format!r}, wanted a ToolCallFormat or one of "
            f"{', '.join(FORMATS)}"
        )
    return FORMATS[format]


def spelled_out(template: str) -> str:
    """A template's source with the suffix that it puts into its marks by `format` (Hy3)."""
    suffix = ":opensource"
    return template.replace("{}", suffix) if f"'{suffix}'" in template else template


# The texts or patterns that a chat template's source has where it speaks of a format, all of them.
# The first line that fits counts, so a line stands before those whose signs its format has too.
# None: marks of a family in a notation that is not known here.
SIGNS: tuple[tuple[ToolCallFormat | None, tuple[str | re.Pattern[str], ...]], ...] = (
    (HARMONY, (HARMONY.open, "<|message|>", "functions.")),
    (MINIMAX_M3, (_MINIMAX, "<invoke name=")),
    (None, (_MINIMAX,)),
    # a template may put the opening of a block together
    (DSML, (_DSML, "function_calls>")),
    (DSML_4, (_DSML, "tool_calls>")),
    (None, (_DSML,)),
    (MINIMAX_M2, (MINIMAX_M2.open,)),
    (SEED, (SEED.open,)),
    (GEMMA4, (GEMMA4.open,)),
    (APERTUS, (APERTUS.open,)),
    (GIGACHAT, (GIGACHAT.open,)),
    (SOLAR, (SOLAR.open, "<|tool_call:args|>")),
    (None, ("<|tool_call:args|>",)),
    (GIGACHAT_3, ("<|role_sep|>", "<|message_sep|>", "function call")),
    (None, ("<|role_sep|>", "<|message_sep|>")),
    (HY3, ("<tool_sep:opensource>",)),
    (MINICPM5, (MINICPM5.open, '<param name="')),
    (None, ('<param name="',)),
    (LFM2, (LFM2.open,)),
    (LFM2, ("List of tools: [", "<|im_start|>")),
    (KIMI, ("<|tool_call_argument_begin|>",)),
    (KIMI, ("tool_declare<|im_middle|>",)),
    (GLM, (GLM.open, "<arg_key>")),
    (None, ("<arg_key>",)),
    (QWEN_CODER, (QWEN_CODER.open, "<function=", "<parameter=")),
    (None, ("<parameter=",)),
    (DEEPSEEK, ("<｜tool▁sep｜>", "```json")),
    (DEEPSEEK_31, ("<｜tool▁sep｜>",)),
    (APRIEL, (f"{APRIEL.open}[",)),
    (NEMOTRON, (f"{NEMOTRON.open}[",)),
    (MINIMAX_M1, (re.compile(rf"{MINIMAX_M1.open}(\n|\\n)\{{"),)),
    (HERMES, (HERMES.open, re.compile("function calling AI model|pydantic model json schema"))),
    (QWEN, (QWEN.open,)),
    (MISTRAL_ARGS, (MISTRAL_ARGS.open, ARGS)),
    (MISTRAL, (MISTRAL.open,)),
    (COMMAND_R, (COMMAND_R.open,)),
    (GRANITE, (GRANITE.open,)),
    (FUNCTION_TAG, (FUNCTION_TAG.open,)),
    (PYTHONIC, (re.compile(r"\[\s*func_name1?\s*\("),)),
    (LLAMA3, (LLAMA3.open,)),
    (LLAMA3, ("<|start_header_id|>", '"parameters"')),
)


def taught_format(template: str) -> ToolCallFormat | None:
    """The format that a chat template's source speaks of, None where it speaks of none that is
    known here.
    """
    template = spelled_out(template)
    for format, signs in SIGNS:
        if all(
            sign in template if isinstance(sign, str) else sign.search(template) for sign in signs
        ):
            return format
    return None
