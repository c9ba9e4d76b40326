"""Texts and conversations as tokens or as the chat template writes them, and tokens as text:
llama-server's routes, of which `/tokenize` and `/detokenize` are vLLM's too.

`/tokenize` takes `content`, as llama-server does, or a `prompt` or `messages`, as vLLM does, and
answers in the same program's form. `/detokenize` is asked alike in both: its answer has the text
under both names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from oxillama.errors import OxillamaError
from oxillama.media.messages import split_media
from oxillama.media.placement import NAMES
from oxillama.server.calls import Call, json_response
from oxillama.server.chat import MESSAGES, conversation_of
from oxillama.server.errors import ApiError, from_engine, missing, unsupported
from oxillama.server.fields import TEMPLATE, encoded, variables_of
from oxillama.server.logprobs import spelled
from oxillama.server.models import ServedModel
from oxillama.server.schema import (
    BOOLEAN,
    NAME,
    STRING,
    Schema,
    array,
    integer,
    obj,
)
from oxillama.server.tools import TOOLS, tools_of
from oxillama.tokenizer import TemplateText

_CONVERSATION: dict[str, Any] = {"messages": MESSAGES, "tools": TOOLS, **TEMPLATE}
TOKENIZE_BODY: Schema = obj(
    {
        "model": NAME,
        "content": STRING,
        "add_special": BOOLEAN,
        "parse_special": BOOLEAN,
        "with_pieces": BOOLEAN,
        "prompt": STRING,
        **_CONVERSATION,
        "add_special_tokens": BOOLEAN,
        "return_token_strs": BOOLEAN,
    }
)
DETOKENIZE_BODY: Schema = obj({"model": NAME, "tokens": array(integer(0), 0, 1 << 20)}, ("tokens",))
TEMPLATE_BODY: Schema = obj({"model": NAME, **_CONVERSATION}, ("messages",))

# what /tokenize may be given with each of what it tokenizes
_BESIDE = {
    "content": {"add_special", "parse_special", "with_pieces"},
    "prompt": {"add_special_tokens", "return_token_strs"},
    "messages": {"add_special_tokens", "return_token_strs", *_CONVERSATION},
}


async def tokenize(call: Call) -> Response:
    """POST /tokenize"""
    body = call.body
    given = [name for name in _BESIDE if body.get(name) is not None]
    if not given:
        raise missing("content", f"is required, or one of {', '.join([*_BESIDE][1:])}")
    for name in body:
        if body[name] is not None and name not in ("model", given[0], *_BESIDE[given[0]]):
            beside = ", ".join(sorted(_BESIDE[given[0]]))
            raise unsupported(name, f"found together with {given[0]}, beside which stand {beside}")
    async with call.model(body.get("model")) as model:
        made = _pieces if given == ["content"] else _counted
        return json_response(await _worked(call, lambda: made(model, body), given[0]))


def _pieces(model: ServedModel, body: Mapping[str, Any]) -> dict[str, Any]:
    """The tokens of a text in llama-server's form."""
    bridge = model.tokenizer()
    ids = bridge.encode(
        body["content"],
        add_special=bool(body.get("add_special")),
        parse_special=body.get("parse_special") is not False,
    )
    if not body.get("with_pieces"):
        return {"tokens": ids}
    return {"tokens": [{"id": token, "piece": _piece(bridge, token)} for token in ids]}


def _piece(bridge: Any, token: int) -> Any:
    text, data = spelled(bridge, token)
    return text if text.encode() == data else list(data)


def _counted(model: ServedModel, body: Mapping[str, Any]) -> dict[str, Any]:
    """The tokens of a text or a conversation in vLLM's form."""
    bridge = model.tokenizer()
    if body.get("messages") is None:
        special = body.get("add_special_tokens") is not False
        ids = bridge.encode(body["prompt"], add_special=special, parse_special=True)
    elif body.get("add_special_tokens"):
        raise unsupported("add_special_tokens", "a chat template writes its own, wanted false")
    else:
        ids = model.chat().encode(_rendered(model, body))
    return {
        "count": len(ids),
        "max_model_len": model.engine.context_size,
        "tokens": ids,
        "token_strs": list(map(bridge.token_text, ids)) if body.get("return_token_strs") else None,
    }


async def detokenize(call: Call) -> Response:
    """POST /detokenize; control tokens are written too, as both programs do."""
    body = call.body
    async with call.model(body.get("model")) as model:
        ids = encoded(model, body["tokens"], param="tokens")

        def work() -> str:
            return model.tokenizer().decode(map(int, ids), skip_special=False)

        text = await _worked(call, work, "tokens")
        return json_response({"content": text, "prompt": text})


async def apply_template(call: Call) -> Response:
    """POST /apply-template"""
    body = call.body
    async with call.model(body.get("model")) as model:
        text = await _worked(call, lambda: _rendered(model, body).plain, "messages")
        return json_response({"prompt": text})


def _rendered(model: ServedModel, body: Mapping[str, Any]) -> TemplateText:
    """The conversation of a body as the chat template writes it."""
    messages, prefill = conversation_of(body)
    goes_on = body.get("continue_final_message")
    begins = bool(goes_on) or body.get("add_generation_prompt") is not False
    media = split_media(messages)[1]
    if media:
        raise ApiError(
            400,
            f"{media[0].name}: found {NAMES[media[0].kind]}, wanted text alone: a prompt's "
            "text has no place for it",
            param=media[0].name,
        )
    return model.chat().render(
        messages,
        tools=tools_of(body),
        variables=variables_of(model, body),
        prefill=prefill,
        add_generation_prompt=begins,
    )


async def _worked(call: Call, work: Any, param: str) -> Any:
    try:
        return await call.race(call.offload(work))
    except OxillamaError as error:
        raise from_engine(error, param=param) from error
