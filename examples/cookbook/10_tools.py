"""Let a model call functions

A call follows the function's types. A model trained for tools needs neither `tool_format` nor
`tool_choice`; here they make the storyteller call.
"""

from typing import Literal

import oxillama


def weather(city: Literal["Ulm", "Oslo"]) -> str:
    """The weather in a city."""
    return f"{city}: sun"


tools = oxillama.ToolDispatcher([weather])
messages = [{"role": "user", "content": "How is the weather?"}]
with oxillama.load() as engine:
    reply = engine.chat(
        messages,
        tools=tools.tools,
        tool_choice="required",
        tool_format="hermes",
        parallel_tool_calls=False,
        temperature=0,
    )
    call = reply.tool_calls[0]
    print(call.name, call.arguments)
    print(weather(**call.arguments))
