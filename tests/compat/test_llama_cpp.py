"""llama-cpp-python's interface: programs as people write them, and what is refused by name."""

import base64
import copy
import importlib
import inspect
import json
import pickle
import sys
from types import SimpleNamespace

import numpy as np
import pytest

import oxillama
from oxillama.compat import constants, llama_cpp
from oxillama.compat.llama_cpp import (
    Llama,
    LlamaCache,
    LlamaDiskCache,
    LlamaGrammar,
    LlamaPromptLookupDecoding,
    LlamaRAMCache,
    LlamaTokenizer,
    LogitsProcessorList,
    MinTokensLogitsProcessor,
    StoppingCriteriaList,
)
from oxillama.errors import ConfigError, EngineError, TemplateError
from tests.lora.made import random_pair, write_lora
from tests.model.worded import worded
from tests.tokenizer.made import spm
from tests.vision.images import VISION, png

MODEL = str(oxillama.embedded_path())
ASKED = [{"role": "user", "content": "Hello!"}]
WEATHER = {
    "name": "weather",
    "parameters": {
        "type": "object",
        "properties": {"city": {"enum": ["Ulm", "Oslo"]}},
        "required": ["city"],
    },
}


@pytest.fixture(scope="module")
def llm():
    with Llama(model_path=MODEL, n_ctx=512, n_threads=1, seed=7, verbose=False) as made:
        yield made


@pytest.fixture(scope="module")
def engine():
    with oxillama.load(n_ctx=512, num_threads=1) as made:
        yield made


def test_a_completion_has_openais_form(llm, engine):
    done = llm("Once upon a time", max_tokens=12, temperature=0.0, stop=["\n"], echo=True)
    wanted = engine.generate(
        "Once upon a time", max_tokens=12, sampler=oxillama.SamplerConfig.greedy(stop=("\n",))
    )
    assert done["object"] == "text_completion" and done["id"].startswith("cmpl-")
    assert done["model"] == MODEL and isinstance(done["created"], int)
    assert done["choices"] == [
        {
            "index": 0,
            "text": "Once upon a time" + wanted.text,
            "logprobs": None,
            "finish_reason": wanted.finish_reason,
        }
    ]
    prompt = wanted.usage.prompt_tokens
    count = wanted.usage.completion_tokens
    wanted_usage = (prompt, count, prompt + count)
    assert tuple(done["usage"].values()) == wanted_usage
    assert llm.create_completion("Once upon a time")["usage"]["completion_tokens"] == 16


def test_a_stream_has_the_same_text(llm):
    whole = llm("Once upon a time", max_tokens=20, temperature=0)["choices"][0]["text"]
    pieces = list(llm("Once upon a time", max_tokens=20, temperature=0, stream=True))
    assert "".join(each["choices"][0]["text"] for each in pieces) == whole
    reasons = [each["choices"][0]["finish_reason"] for each in pieces]
    assert reasons[-1] == "length" and set(reasons[:-1]) == {None}
    assert len({each["id"] for each in pieces}) == 1


def test_a_seed_gives_the_same_text_again(llm):
    hot = {"temperature": 3.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}

    def text(**options):
        return llm("Once", max_tokens=16, **hot, **options)["choices"][0]["text"]

    assert text(seed=5) == text(seed=5) != text(seed=6)
    llm.set_seed(5)
    several = [text(), text(), text()]
    assert len(set(several)) == 3  # one `Llama` asked for several samples gives several
    llm.set_seed(5)
    assert [text(), text(), text()] == several
    llm.set_seed(7)
    drawn = {text(seed=seed) for seed in (-1, -1, llama_cpp.LLAMA_DEFAULT_SEED)}
    assert len(drawn) == 3 and text() not in drawn
    llm.set_seed(7)
    llm.reset()
    llm.eval(llm.tokenize(b"There was a"))
    flat = {"temp": 5.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
    assert llm.sample(**flat) == llm.sample(**flat, seed=7)
    assert len({llm.sample(**flat, seed=-1) for _ in range(9)}) > 1
    llm.reset()


def test_log_probabilities_of_prompt_and_text(llm, engine):
    done = llm("Once upon a time", max_tokens=4, temperature=0, logprobs=2, echo=True)
    found = done["choices"][0]["logprobs"]
    begin, *ids = engine.tokenize("Once upon a time")
    assert begin == llm.token_bos()  # as in llama-cpp-python it is no token of the text
    assert found["tokens"][: len(ids)] == ["Once", " upon", " a", " time"]
    assert len(found["tokens"]) == len(ids) + 4
    assert found["token_logprobs"][0] is found["top_logprobs"][0] is None
    rows = engine.logits([begin, *ids]).astype(np.float64)
    for at in range(1, len(ids)):
        row = rows[at]
        value = row[ids[at]] - row.max() - np.log(np.exp(row - row.max()).sum())
        assert abs(found["token_logprobs"][at] - value) < 1e-4
        assert found["top_logprobs"][at][found["tokens"][at]] == found["token_logprobs"][at]
    greedy = found["top_logprobs"][len(ids)]
    assert max(greedy.values()) == found["token_logprobs"][len(ids)] and len(greedy) == 2
    text = done["choices"][0]["text"]
    for token, offset in zip(found["tokens"], found["text_offset"]):
        assert text[offset:].startswith(token)
    ask = {"max_tokens": 4, "temperature": 0, "logprobs": 2, "echo": True, "stream": True}
    pieces = [each["choices"][0] for each in llm("Once upon a time", **ask)]
    assert "".join(each["text"] for each in pieces) == text
    for name, values in found.items():
        assert [value for each in pieces for value in each["logprobs"][name]] == values


def test_a_chat_and_its_stream(llm, engine):
    done = llm.create_chat_completion(messages=ASKED, max_tokens=16, temperature=0)
    wanted = engine.chat(ASKED, max_tokens=16, sampler=oxillama.SamplerConfig.greedy())
    message = done["choices"][0]["message"]
    assert message == {"role": "assistant", "content": wanted.content}
    assert done["object"] == "chat.completion" and done["id"].startswith("chatcmpl-")
    chunks = list(llm.create_chat_completion(ASKED, max_tokens=16, temperature=0, stream=True))
    deltas = [each["choices"][0]["delta"] for each in chunks]
    assert deltas[0] == {"role": "assistant"} and deltas[-1] == {}
    assert "".join(each.get("content", "") for each in deltas) == wanted.content
    assert chunks[-1]["choices"][0]["finish_reason"] == wanted.finish_reason
    assert {each["object"] for each in chunks} == {"chat.completion.chunk"}


def test_log_probabilities_of_a_chat(llm):
    done = llm.create_chat_completion(
        ASKED, max_tokens=4, temperature=0, logprobs=True, top_logprobs=3
    )
    content = done["choices"][0]["logprobs"]["content"]
    assert len(content) == done["usage"]["completion_tokens"]
    for each in content:
        assert bytes(each["bytes"]).decode() == each["token"] and len(each["top_logprobs"]) == 3
        assert each["top_logprobs"][0]["logprob"] == each["logprob"]  # greedy


def test_bytes_of_a_chats_tokens_are_the_tokens_own(llm, engine):
    (token,) = engine.tokenize("\xe9", add_special=False)[:1]  # the first of two bytes
    done = llm.create_chat_completion(
        ASKED, max_tokens=1, logprobs=True, logit_bias={token: 1e6}, temperature=0
    )
    assert done["choices"][0]["logprobs"]["content"][0]["bytes"] == [0xC3]
    with pytest.raises(ConfigError, match="top_logprobs: found 3 without logprobs=True"):
        llm.create_chat_completion(ASKED, max_tokens=1, top_logprobs=3)


def test_tools_are_called_as_openais_are(llm):
    options = {"max_tokens": 200, "temperature": 0, "tool_format": "hermes"}
    tools = [{"type": "function", "function": WEATHER}]
    choice = {"type": "function", "function": {"name": "weather"}}
    done = llm.create_chat_completion(ASKED, tools=tools, tool_choice=choice, **options)
    choice_found = done["choices"][0]
    first = choice_found["message"]["tool_calls"][0]
    assert choice_found["finish_reason"] in ("tool_calls", "length")
    assert first["type"] == "function" and first["function"]["name"] == "weather"
    assert json.loads(first["function"]["arguments"])["city"] in ("Ulm", "Oslo")
    chunks = llm.create_chat_completion(
        ASKED, tools=tools, tool_choice=choice, stream=True, **options
    )
    text, names, ids = "", [], []
    for chunk in chunks:
        for each in chunk["choices"][0]["delta"].get("tool_calls", ()):
            if each["index"] == 0:
                text += each["function"]["arguments"]
                names += [each["function"]["name"]] if each["function"]["name"] else []
                assert set(each) - {"id"} == {"index", "type", "function"}
                assert set(each["function"]) == {"name", "arguments"}
                ids += [each["id"]] if "id" in each else []
    assert names == ["weather"] and text == first["function"]["arguments"]
    assert ids == [f"call_0_{chunk['id']}"] and first["id"] == f"call_0_{done['id']}"
    legacy = llm.create_chat_completion(
        ASKED, functions=[WEATHER], function_call={"name": "weather"}, **options
    )
    message = legacy["choices"][0]["message"]
    assert message["function_call"] == first["function"]
    assert [each["function"] for each in message["tool_calls"]] == [first["function"]]
    chunks = llm.create_chat_completion(
        ASKED, functions=[WEATHER], function_call={"name": "weather"}, stream=True, **options
    )
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    calls = [each["function_call"] for each in deltas if "function_call" in each]
    assert [each["name"] for each in calls] == ["weather"] + [None] * (len(calls) - 1)
    assert "".join(each["arguments"] for each in calls) == first["function"]["arguments"]


def test_a_call_that_max_tokens_cuts_off_is_not_lost(llm):
    """Streamed or not: its name and the arguments so far, or its text where it has no name yet."""
    ways = [
        {
            "tools": [{"type": "function", "function": WEATHER}],
            "tool_choice": {"type": "function", "function": {"name": "weather"}},
        },
        {"functions": [WEATHER], "function_call": {"name": "weather"}},
    ]
    for way in ways:
        given = {**way, "temperature": 0, "tool_format": "hermes"}
        seen = set()
        for tokens in range(2, 90, 4):
            done = llm.create_chat_completion(ASKED, max_tokens=tokens, **given)["choices"][0]
            chunks = llm.create_chat_completion(ASKED, max_tokens=tokens, stream=True, **given)
            deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
            text = "".join(each.get("content") or "" for each in deltas)
            calls = [each["function"] for d in deltas for each in d.get("tool_calls", ())]
            calls += [each["function_call"] for each in deltas if "function_call" in each]
            message = done["message"]
            assert (message["content"] or "") == text
            if done["finish_reason"] != "length":
                break
            if calls:
                found = message["tool_calls"][0]["function"]
                assert found["name"] == calls[0]["name"] == "weather"
                assert found["arguments"] == "".join(each["arguments"] for each in calls)
                assert message.get("function_call", found) == found and not text
                seen.add("arguments" if found["arguments"] else "name")
            else:
                assert "tool_calls" not in message and "<tool_call>".startswith(text[:11]) and text
                seen.add("text")
        assert seen == {"text", "name", "arguments"}


def test_ids_of_calls_fit_a_template_that_counts_their_characters():
    """As Mistral's does. Every call of every reply has an id of its own, longer than nine."""
    template = (
        "{% for m in messages %}{{ m.role }}{% for c in m.tool_calls or [] %}"
        "{% if c.id | length != 9 %}{{ raise_exception('wanted nine') }}{% endif %}{{ c.id }}"
        "{{ c.function.name }}{{ c.function.arguments | tojson }}{% endfor %}"
        "{{ m.tool_call_id }}{{ m.content }}{% endfor %}"
    )
    call = {"type": "function", "function": {"name": "weather", "arguments": '{"city": "Ulm"}'}}

    def talk(*ids):
        out = [*ASKED]
        for each in ids:
            out.append({"role": "assistant", "content": None, "tool_calls": [{**call, "id": each}]})
            out.append({"role": "tool", "tool_call_id": each, "content": "sunny"})
        return out

    with Llama(MODEL, n_threads=1, n_ctx=512) as llm:
        llm.engine.loaded.use_template(template)
        found = [
            llm.create_chat_completion(talk(*ids), max_tokens=4, temperature=0)
            for ids in (("call_0_a", "call_0_b"), ("call00000", "call00001"), ("x", "x"))
        ]
    assert found[0]["choices"] == found[1]["choices"] == found[2]["choices"]
    assert found[0]["usage"] == found[1]["usage"] == found[2]["usage"]


def test_what_a_function_gave_is_told_in_the_older_form_too(llm):
    call = {"name": "weather", "arguments": '{"city": "Ulm"}'}
    tool = {"id": "call00001", "type": "function", "function": call}
    ask = {"max_tokens": 9, "temperature": 0, "tool_format": "hermes", "functions": [WEATHER]}
    older = [
        *ASKED,
        {"role": "assistant", "content": None, "function_call": call},
        {"role": "function", "name": "weather", "content": "12 degrees"},
    ]
    newer = [
        *ASKED,
        {"role": "assistant", "content": None, "tool_calls": [tool]},
        {"role": "tool", "tool_call_id": tool["id"], "name": "weather", "content": "12 degrees"},
    ]
    wanted = llm.create_chat_completion(newer, **ask)
    both = {"role": "assistant", "content": None, "tool_calls": [tool], "function_call": call}
    for messages in (older, [older[0], both, older[2]]):
        given = copy.deepcopy(messages)
        found = llm.create_chat_completion(messages, **ask)
        assert found["choices"] == wanted["choices"] and found["usage"] == wanted["usage"]
        assert messages == given
    with pytest.raises(ConfigError, match=r"^messages\[0\].tool_calls\[0\].function: found int"):
        llm.create_chat_completion([{"role": "assistant", "function_call": 5}], **ask)


def test_response_formats_and_grammars_are_kept_to(llm):
    schema = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"]}
    kept = {"type": "json_object", "schema": schema}
    done = llm.create_chat_completion(ASKED, response_format=kept, temperature=0, max_tokens=40)
    assert set(json.loads(done["choices"][0]["message"]["content"])) == {"n"}
    for grammar in (
        LlamaGrammar.from_string('root ::= "{\\"n\\": " [12] "}"', verbose=False),
        LlamaGrammar.from_json_schema(json.dumps(schema)),
    ):
        text = llm("A number:", grammar=grammar, max_tokens=40)["choices"][0]["text"]
        assert json.loads(text)["n"] in (1, 2)


def test_processors_and_biases_change_the_draw(llm):
    def only(input_ids, scores):
        scores[:] = -np.inf
        scores[int(input_ids[-1])] = 0.0
        return scores

    ids = llm.tokenize(b"Once")
    done = llm(ids, max_tokens=3, logits_processor=LogitsProcessorList([only]))
    assert done["choices"][0]["text"] == llm.detokenize([ids[-1]] * 3, prev_tokens=ids).decode()
    done = llm(ids, max_tokens=2, temperature=0, logit_bias={str(ids[-1]): 1e4})
    assert done["choices"][0]["text"] == llm.detokenize([ids[-1]] * 2, prev_tokens=ids).decode()


def test_a_text_of_so_many_tokens_at_least(llm):
    ids, end = llm.tokenize(b"Once"), llm.token_eos()
    ask = {"temperature": 0, "max_tokens": 8, "logit_bias": {end: 1e4}}
    done = llm(ids, **ask)
    assert done["choices"][0]["finish_reason"] == "stop"
    assert done["choices"][0]["text"] == ""
    longer = llm(
        ids, logits_processor=LogitsProcessorList([MinTokensLogitsProcessor(3, end)]), **ask
    )
    plain = llm(ids, temperature=0, max_tokens=3)["choices"][0]["text"]
    assert longer["choices"][0]["text"] == plain
    assert longer["choices"][0]["finish_reason"] == "stop"


def test_stopping_criteria_end_a_text(llm):
    """As transformers' class of this name is used: by a number of tokens, by a word."""
    ids = llm.tokenize(b"Once upon a time")
    plain = {"max_tokens": 24, "temperature": 0}
    whole = llm(ids, **plain)["choices"][0]["text"]
    seen = []

    def long_enough(input_ids, logits):
        seen.append((len(input_ids), int(logits.argmax())))
        return len(input_ids) >= len(ids) + 5

    def names_her(input_ids, logits):
        return b"Daisy" in llm.detokenize(input_ids.tolist())

    done = llm(ids, stopping_criteria=StoppingCriteriaList([long_enough]), **plain)
    assert done["choices"][0]["finish_reason"] == "stop" and done["usage"]["completion_tokens"] == 5
    assert done["choices"][0]["text"] == whole[: len(done["choices"][0]["text"])] != ""
    assert [count for count, _ in seen] == [*range(len(ids), len(ids) + 6)]
    drawn = llm.detokenize([token for _, token in seen[:5]], prev_tokens=ids).decode()
    assert done["choices"][0]["text"] == drawn  # what is drawn greedily from the rows it was given
    both = StoppingCriteriaList([names_her, lambda input_ids, logits: False])
    text = llm(ids, stopping_criteria=both, **plain)["choices"][0]["text"]
    assert text.endswith("Daisy") and whole.startswith(text)
    pieces = [*llm(ids, stopping_criteria=both, stream=True, **plain)]
    assert "".join(each["choices"][0]["text"] for each in pieces) == text
    assert pieces[-1]["choices"][0]["finish_reason"] == "stop"
    at_once = llm(ids, stopping_criteria=lambda input_ids, logits: True, **plain)
    assert at_once["choices"][0]["text"] == ""


def test_what_was_held_back_begins_where_the_text_ends():
    """With a vocabulary that puts a space before a text, which a text after <s> leaves out."""
    bridge = spm({"▁a": 0.0, "b": 0.0})
    done = SimpleNamespace(finish_reason="cancelled", tokens=(259, 260))
    llm = SimpleNamespace(_bridge=bridge, detokenize=lambda ids, **_: b" ab")
    assert Llama._held_back(llm, [1], done, 1) == "b"
    assert Llama._held_back(llm, [1, 260], done, 2) == "b"


def test_stopping_criteria_leave_out_nothing(llm):
    """A stop string that may be beginning holds text back; it is shown where the text ends."""
    ids = llm.tokenize(b"Once upon a time")
    plain = {"max_tokens": 8, "temperature": 0}
    whole = llm(ids, **plain)["choices"][0]["text"]
    ask = {**plain, "stop": [whole[:-1] + "!!"]}
    assert llm(ids, **ask)["choices"][0]["text"] == whole
    ask["stopping_criteria"] = lambda input_ids, logits: len(input_ids) == len(ids) + 4
    done = llm(ids, **ask)
    assert done["usage"]["completion_tokens"] == 4
    text = done["choices"][0]["text"]
    assert text != "" and whole.startswith(text)
    assert "".join(each["choices"][0]["text"] for each in llm(ids, stream=True, **ask)) == text


def test_an_error_of_a_stopping_criterion_is_the_callers(llm):
    with pytest.raises(ZeroDivisionError):
        llm("Once", stopping_criteria=lambda input_ids, logits: 1 / 0)


def test_arguments_that_langchain_gives_of_old():
    """What its classes always give, of which llama-cpp-python itself knows nothing any more."""
    of_old = {"n_parts": -1, "device": None, "use_mlock": False, "logits_all": False}
    with Llama(MODEL, n_threads=1, f16_kv=True, **of_old) as half:
        assert half.engine.engine_config.kv_type is None  # the default is f16
    with Llama(MODEL, n_threads=1, embedding=True, f16_kv=False, **of_old) as whole:
        assert whole.engine.engine_config.kv_type == "f32"
        assert len(whole.create_embedding(["Once"])["data"][0]["embedding"][0]) == whole.n_embd()


def test_modules_of_llama_cpp_python_are_this_one():
    import oxillama.compat.llama_cpp.llama_tokenizer as tokenizers

    # the types that programs annotate their own functions with
    from oxillama.compat.llama_cpp import LogitsProcessor, StoppingCriteria
    from oxillama.compat.llama_cpp.llama import Llama as Same
    from oxillama.compat.llama_cpp.llama_speculative import LlamaPromptLookupDecoding as Lookup
    from oxillama.compat.llama_cpp.llama_types import ChatCompletionRequestUserMessage as Message

    assert list[LogitsProcessor] in llama_cpp.LogitsProcessorList.__orig_bases__
    assert list[StoppingCriteria] in llama_cpp.StoppingCriteriaList.__orig_bases__
    assert Same is Llama and Lookup is LlamaPromptLookupDecoding
    assert Message(role="user", content="Hello!") == ASKED[0]
    assert tokenizers.LlamaTokenizer is llama_cpp.llama_tokenizer.LlamaTokenizer is LlamaTokenizer
    for make in (tokenizers.LlamaHFTokenizer, tokenizers.LlamaHFTokenizer.from_pretrained):
        with pytest.raises(ConfigError, match="^LlamaHFTokenizer: is not done here"):
            make("owner/name")


def test_libraries_that_import_llama_cpp_get_this_module(monkeypatch):
    before = {name for name in sys.modules if name.split(".")[0] == "llama_cpp"}
    for name in before:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "llama_cpp", SimpleNamespace(Llama=None))
    with pytest.raises(EngineError, match="^install: llama_cpp is imported already"):
        llama_cpp.install()
    monkeypatch.delitem(sys.modules, "llama_cpp")
    try:
        llama_cpp.install()
        llama_cpp.install()
        found = importlib.import_module("llama_cpp")
        assert found.Llama is Llama
        assert importlib.import_module("llama_cpp.llama_grammar").LlamaGrammar is LlamaGrammar
    finally:
        for name in [name for name in sys.modules if name.split(".")[0] == "llama_cpp"]:
            del sys.modules[name]


def test_the_chat_format_of_the_guide_to_functions():
    tools = [{"type": "function", "function": WEATHER}]
    plain = {"max_tokens": 4, "temperature": 0}
    found = []
    for form in ("chatml-function-calling", "chatml"):
        with Llama(MODEL, n_threads=1, n_ctx=512, chat_format=form) as llm:
            assert llm.context_params.n_ctx == llm.n_ctx() == 512  # LlamaIndex reads it here
            found += [llm.create_chat_completion(ASKED, tools=tools, **plain)["choices"]]
    assert found[0] == found[1]


def test_a_file_without_a_template_asks_for_a_chat_format(cases):
    with Llama(VISION / "qwen2vl" / "text-f32.gguf", n_threads=1) as llm:
        for stream in (False, True):
            with pytest.raises(TemplateError, match="^chat_format: found None .* one of chatml, "):
                llm.create_chat_completion(ASKED, stream=stream)


def test_what_a_chat_handler_shows_is_seen(cases):
    path = VISION / "qwen2vl"
    data = base64.b64encode(png("sq112")).decode()
    url = f"data:image/png;base64,{data}"
    encoder = str(path / "mmproj-f32.gguf")
    plain = {"max_tokens": 3, "temperature": 0}
    with oxillama.load(
        path / "text-f32.gguf", mmproj=encoder, n_ctx=512, num_threads=1, chat_template="chatml"
    ) as engine:
        parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "?"}]
        wanted = engine.chat([{"role": "user", "content": parts}], **plain)
    handler = llama_cpp.llama_chat_format.Gemma4ChatHandler(clip_model_path=encoder)
    with Llama(
        path / "text-f32.gguf", n_threads=1, chat_format="chatml", chat_handler=handler
    ) as llm:
        parts[0] = {"type": "image_url", "image_url": url}  # its own guide has the short form
        done = llm.create_chat_completion([{"role": "user", "content": parts}], **plain)
    assert done["choices"][0]["message"]["content"] == wanted.content
    assert done["usage"]["prompt_tokens"] == wanted.usage.prompt_tokens > 16


def test_handlers_that_have_a_form_of_their_own_are_named(monkeypatch):
    for name in ("Llava15ChatHandler", "MoondreamChatHandler", "Qwen25VLChatHandler"):
        handler = getattr(llama_cpp, name)
        for make in (handler, handler.from_pretrained):
            with pytest.raises(ConfigError, match=f"^{name}: .*, wanted MTMDChatHandler"):
                make(clip_model_path="mmproj.gguf")


def test_an_encoder_of_the_hub_by_its_name(monkeypatch, tmp_path):
    import huggingface_hub

    names = ("m-Q4_K_M.gguf", "mmproj-m-F16.gguf", "mmproj-m-Q8_0.gguf")
    for name in names:
        (tmp_path / name).touch()

    class Api:
        def model_info(self, repo):
            return SimpleNamespace(siblings=[SimpleNamespace(rfilename=name) for name in names])

    monkeypatch.setattr(huggingface_hub, "HfApi", Api)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", lambda repo, name: str(tmp_path / name))
    make = llama_cpp.MTMDChatHandler.from_pretrained
    assert make("owner/name").clip_model_path == str(tmp_path / "mmproj-m-F16.gguf")
    assert make("owner/name", "*Q8_0*").clip_model_path == str(tmp_path / "mmproj-m-Q8_0.gguf")
    assert make("owner/name", "*mmproj*").clip_model_path == str(tmp_path / "mmproj-m-F16.gguf")
    with pytest.raises(oxillama.GgufNotFound, match=r"no file for 'mmproj-F32.gguf', it has"):
        make("owner/name", "mmproj-F32.gguf")
    with pytest.raises(ConfigError, match="^local_dir: found 'models', which is not done here"):
        make("owner/name", "*mmproj*", local_dir="models")
    assert make("owner/name", verbose=False) == llama_cpp.MTMDChatHandler(
        str(tmp_path / "mmproj-m-F16.gguf"), verbose=False
    )


def test_the_module_says_what_this_machine_and_build_can_do():
    assert llama_cpp.__version__.split(".")[:2] == ["0", "3"]
    assert llama_cpp.llama_supports_gpu_offload() is False
    assert llama_cpp.llama_supports_mmap() is True
    assert llama_cpp.llama_supports_rpc() is False
    assert llama_cpp.llama_max_devices() == 1
    said = llama_cpp.llama_print_system_info().decode()
    assert said.startswith(f"CPU : ISA = {oxillama.cpu_info()['isa']} | ")
    assert all(f" {name.upper()} = 1 |" in said for name in oxillama.cpu_info()["features"])
    inner = importlib.import_module("oxillama.compat.llama_cpp.llama_cpp")
    assert inner.llama_supports_gpu_offload is llama_cpp.llama_supports_gpu_offload
    assert "llama_print_system_info" in llama_cpp.__all__
    # as it says, memory cannot be locked
    assert llama_cpp.llama_supports_mlock() is False
    with pytest.raises(ConfigError, match="^use_mlock"):
        Llama(MODEL, use_mlock=True)


def test_numbers_have_their_names():
    types = {name: value for name, value in vars(constants).items() if name.startswith("GGML_TYPE")}
    named = {f"GGML_TYPE_{kind.name}": kind.id for kind in oxillama.gguf.TENSOR_TYPES}
    assert {name: named[name] for name in types} == types
    assert llama_cpp.LLAMA_POOLING_TYPE_MEAN == 1 and llama_cpp.GGML_TYPE_Q8_0 == 8
    yarn = llama_cpp.LLAMA_ROPE_SCALING_TYPE_YARN
    assert set(constants.__all__) < set(llama_cpp.__all__)
    with Llama(
        MODEL,
        n_threads=1,
        rope_scaling_type=yarn,
        pooling_type=llama_cpp.LLAMA_POOLING_TYPE_CLS,
        type_k=llama_cpp.GGML_TYPE_Q8_0,
        type_v=llama_cpp.GGML_TYPE_Q8_0,
        split_mode=llama_cpp.LLAMA_SPLIT_MODE_LAYER,
        attention_type=llama_cpp.LLAMA_ATTENTION_TYPE_UNSPECIFIED,
        numa=llama_cpp.GGML_NUMA_STRATEGY_DISABLED,
        seed=llama_cpp.LLAMA_DEFAULT_SEED,
    ) as llm:
        assert llm.engine.engine_config.kv_type == "q8_0" and llm.pooling_type() == 2


def test_tokens_and_bytes(llm):
    text = "Käse im Haus".encode()
    ids = llm.tokenize(text)
    assert ids[0] == llm.token_bos() and llm.detokenize(ids) == text
    assert llm.tokenize(text, add_bos=False) == ids[1:]
    control = llm.detokenize([llm.token_eos()], special=True)
    assert llm.tokenize(control, add_bos=False, special=True) == [llm.token_eos()]
    assert llm.tokenize(control, add_bos=False) != [llm.token_eos()]
    assert llm.n_vocab() > llm.token_eos() and llm.n_ctx() == 512
    assert llm.metadata["general.architecture"] == "llama"
    with pytest.raises(ConfigError, match="tokenize: found str, wanted bytes"):
        llm.tokenize("text")


def test_the_loop_of_generate(llm, engine):
    """The low-level program of llama-cpp-python's own page."""
    wanted = engine.generate(
        "Once upon a time", max_tokens=10, sampler=oxillama.SamplerConfig.greedy()
    ).tokens
    out = []
    for token in llm.generate(llm.tokenize(b"Once upon a time"), temp=0.0):
        if token == llm.token_eos() or len(out) == 10:
            break
        out.append(token)
    assert tuple(out) == wanted


def test_the_loop_of_generate_ends_and_is_constrained(llm, engine):
    ids = llm.tokenize(b"Once upon a time")
    wanted = engine.generate(
        "Once upon a time", max_tokens=10, sampler=oxillama.SamplerConfig.greedy()
    ).tokens
    over = StoppingCriteriaList([lambda input_ids, logits: len(input_ids) == len(ids) + 6])
    assert tuple(llm.generate(ids, temp=0.0, stopping_criteria=over)) == wanted[:6]

    def only(input_ids, scores):
        scores[:] = -np.inf
        scores[int(input_ids[-1])] = 0.0
        return scores

    out = llm.generate(ids, logits_processor=LogitsProcessorList([only]), stopping_criteria=over)
    assert [*out] == [ids[-1]] * 6
    out, text = [], LlamaGrammar.from_string('root ::= " a fox"')
    for token in llm.generate(ids, grammar=text):
        if token == llm.token_eos():
            break
        out.append(token)
    assert llm.detokenize(out, prev_tokens=ids) == b" a fox"
    mirostat = {"mirostat_mode": 2, "stopping_criteria": over}
    llm.set_seed(5)
    first = [*llm.generate(ids, top_k=1, **mirostat)]  # which would leave the likeliest
    assert first == [*llm.generate(ids, top_k=0, **mirostat)] != [*wanted[:6]]
    llm.set_seed(7)
    for options, words in (({"tfs_z": 0.5}, "tfs_z"), ({"penalize_nl": False}, "penalize_nl")):
        with pytest.raises(ConfigError, match=words):
            next(llm.generate(ids, **options))


def test_sample_takes_what_generate_takes(llm):
    llm.reset()
    ids = llm.tokenize(b"Once upon a time")
    llm.eval(ids)
    first = llm.sample(temp=0.0)

    def ban(tokens, scores):
        assert tokens.tolist() == ids
        scores[first] = -np.inf
        return scores

    assert llm.sample(temp=0.0, logits_processor=LogitsProcessorList([ban])) != first
    only = LlamaGrammar.from_string('root ::= "zebra"')
    assert b"zebra".startswith(llm.detokenize([llm.sample(grammar=only)], prev_tokens=ids))
    drawn = {llm.sample(top_k=1, temp=3.0, seed=at, mirostat_mode=2) for at in range(9)}
    assert len(drawn) > 1  # which top_k would leave the likeliest
    assert llm.sample(temp=0.0, idx=len(ids) - 1) == first
    with pytest.raises(EngineError, match="found idx 2, and the logits of tokens 4 to 4, wanted"):
        llm.sample(idx=2)
    for options, words in (({"tfs_z": 0.5}, "tfs_z"), ({"penalize_nl": False}, "penalize_nl")):
        with pytest.raises(ConfigError, match=words):
            llm.sample(**options)
    with Llama(MODEL, n_ctx=64, logits_all=True) as every:
        every.eval(ids)
        likely = every.scores.argmax(axis=1).tolist()
        assert [every.sample(temp=0.0, idx=at) for at in range(len(ids))] == likely


def test_eval_sample_save_and_load(llm, engine):
    llm.reset()
    ids = llm.tokenize(b"Once upon a time")
    llm.eval(ids)
    assert llm.n_tokens == len(ids) and llm.input_ids.tolist() == ids
    assert np.array_equal(llm.scores[-1], engine.logits(ids)[-1])
    state, first = llm.save_state(), llm.sample(temp=0.0)
    llm.eval([first])
    second = llm.sample(temp=0.0)
    llm.reset()
    assert llm.n_tokens == 0
    with pytest.raises(EngineError, match="wanted eval first"):
        llm.sample()
    llm.load_state(state)
    assert llm.n_tokens == len(ids) and llm.sample(temp=0.0) == first
    llm.eval([first])
    assert llm.sample(temp=0.0) == second


def test_a_completion_leaves_its_session_to_go_on_with(llm):
    done = llm("Once upon a time", max_tokens=5, temperature=0)
    state = llm.save_state()
    assert state.n_tokens >= done["usage"]["prompt_tokens"] + 4
    llm.reset()
    llm.load_state(state)
    assert llm.input_ids.tolist() == state.input_ids.tolist()


def test_a_state_after_a_processor_is_continued(llm):
    llm("Once upon a time", max_tokens=3, logits_processor=[lambda ids, scores: scores])
    state = llm.save_state()
    llm.reset()
    llm.load_state(state)
    assert llm.input_ids.tolist() == state.input_ids.tolist()


def test_a_cache_in_memory_changes_no_text(llm):
    wanted = llm("Once upon a time", max_tokens=5, temperature=0)["choices"][0]["text"]
    llm.set_cache(LlamaRAMCache(capacity_bytes=1 << 20))
    llm.set_cache(LlamaCache())
    llm.set_cache(None)
    assert llm("Once upon a time", max_tokens=5, temperature=0)["choices"][0]["text"] == wanted


def test_tokens_and_logits_that_were_evaluated(llm):
    ids = llm.tokenize(b"Once upon a time")
    llm.reset()
    assert not llm.eval_tokens and not llm.eval_logits
    llm.eval(ids)
    assert list(llm.eval_tokens) == ids and list(llm.eval_logits) == [llm.scores[-1].tolist()]
    for first, second, size in (([1, 2, 3], [1, 2, 4], 2), ([1], [1, 2], 1), ([], [1], 0)):
        assert Llama.longest_token_prefix(first, second) == size
    shares = Llama.logits_to_logprobs(llm.eval_logits)
    assert shares.shape == (1, llm.n_vocab())
    drawn = llm(ids, max_tokens=1, temperature=0, logprobs=1)["choices"][0]["logprobs"]
    assert abs(shares.max() - drawn["token_logprobs"][0]) < 1e-5


def test_a_prompt_that_is_too_long_names_the_argument_that_helps(llm):
    said = r"takes at most 511; Llama\(n_ctx=\.\.\.\) gives more where the model has it$"
    long = "fox " * 600
    for ask in (
        lambda: llm(long),
        lambda: next(llm(long, stream=True)),
        lambda: llm.create_chat_completion([{"role": "user", "content": long}]),
        lambda: list(llm.create_chat_completion([{"role": "user", "content": long}], stream=True)),
    ):
        with pytest.raises(oxillama.ContextError, match=said) as caught:
            ask()
        assert caught.value.limit == 511 and caught.value.tokens > 600


def test_every_logit_is_kept_where_asked_for(engine):
    with Llama(MODEL, logits_all=True, n_threads=1) as llm:
        ids = llm.tokenize(b"Once upon a time")
        llm.eval(ids[:3])
        llm.eval(ids[3:])
        assert np.array_equal(llm.scores, engine.logits(ids))


def test_embeddings_of_a_pooled_and_of_an_unpooled_model(engine):
    with Llama(MODEL, embedding=True, pooling_type=1, n_threads=1) as llm:
        made = llm.create_embedding(["Once", "upon a time"])
        assert [each["index"] for each in made["data"]] == [0, 1]
        assert len(made["data"][0]["embedding"]) == llm.n_embd()
        assert made["usage"]["total_tokens"] == sum(
            len(engine.tokenize(text)) for text in ("Once", "upon a time")
        )
        assert llm.embed("Once", normalize=True) == engine.embed("Once").tolist()
        with pytest.raises(oxillama.ContextError, match="wanted at most 512"):
            llm.embed("fox " * 700, truncate=False)
        assert len(llm.embed("fox " * 700)) == llm.n_embd()
    with Llama(MODEL, embedding=True, n_threads=1) as llm:
        assert np.shape(llm.embed("Once upon")) == (len(llm.tokenize(b"Once upon")), llm.n_embd())
    with Llama(MODEL, n_threads=1) as llm, pytest.raises(EngineError, match="embedding=True"):
        llm.embed("Once")


def test_a_vocabulary_alone_and_a_closed_model():
    llm = Llama(MODEL, vocab_only=True)
    assert llm.detokenize(llm.tokenize(b"a fox")) == b"a fox"
    with pytest.raises(EngineError, match="vocab_only=False"):
        llm("Once")
    llm.close()
    llm.close()


def test_lookup_candidates_and_formats_change_no_text(llm):
    wanted = llm("Once upon a time", max_tokens=30, temperature=0)["choices"][0]["text"]
    with Llama(MODEL, n_threads=1, draft_model=LlamaPromptLookupDecoding(num_pred_tokens=4)) as own:
        assert own("Once upon a time", max_tokens=30, temperature=0)["choices"][0]["text"] == wanted
    plain = llm.create_chat_completion(ASKED, max_tokens=8, temperature=0)
    with Llama(MODEL, n_threads=1, chat_format="chatml") as own:
        done = own.create_chat_completion(ASKED, max_tokens=8, temperature=0)
    # the embedded model's own template is that one after its first token
    assert done["usage"]["prompt_tokens"] == plain["usage"]["prompt_tokens"] - 1


def test_an_adapter_is_that_of_the_engine(llm, tmp_path):
    with oxillama.gguf.GgufReader(MODEL) as reader:
        arch = reader.metadata["general.architecture"]
        shapes = {n: tuple(t.shape) for n, t in reader.tensors.items() if "attn_q." in n}
    rng = np.random.default_rng(1)
    pairs = {name: random_pair(name, shape, 4, rng) for name, shape in shapes.items()}
    path = write_lora(tmp_path / "own.gguf", arch, pairs, alpha=400.0)
    ask = {"max_tokens": 12, "temperature": 0, "repeat_penalty": 1.0}
    with oxillama.load() as engine:
        own = {"max_tokens": 12, "temperature": 0.0, "repeat_penalty": 1.0}
        wanted = engine.generate("Once upon a time", lora=[(path, 0.5)], **own).text
    with Llama(MODEL, lora_path=path, lora_scale=0.5) as changed:
        text = changed("Once upon a time", **ask)["choices"][0]["text"]
    assert text == wanted != llm("Once upon a time", **ask)["choices"][0]["text"]
    with pytest.raises(oxillama.errors.GgufNotFound):
        Llama(MODEL, lora_path=tmp_path / "none.gguf")


@pytest.mark.parametrize(
    ("options", "words"),
    (
        ({"n_gpu_layers": -1}, "n_gpu_layers: found -1, which is not done here, wanted 0"),
        ({"use_mlock": True}, "use_mlock"),
        ({"attention_type": 1}, "attention_type: found 1, which is not done here, wanted -1"),
        ({"lora_scale": 0.5}, "lora_scale: found 0.5 without a lora_path"),
        ({"lora_path": "x", "vocab_only": True}, "lora_path: found together with vocab_only"),
        ({"chat_format": "functionary"}, "chat_format: found 'functionary', wanted None"),
        ({"type_k": 8}, "type_k, type_v: found 8, None"),
        ({"chat_handler": print}, "chat_handler: found builtin_function_or_method, wanted an MTMD"),
        (
            {"chat_handler": llama_cpp.MTMDChatHandler("m.gguf"), "vocab_only": True},
            "chat_handler: found together with vocab_only=True",
        ),
        ({"seed": "x"}, "seed: found 'x', wanted an integer of 0 or more"),
        ({"f16_kv": 1}, "f16_kv: found 1, wanted True or False"),
        ({"f16_kv": False, "type_k": 1}, "type_k, type_v: found 1, None"),
        ({"n_gpu_layers": -1}, "-1, which is not done here, wanted 0; everything runs on the CPU"),
        ({"n_parts": 2}, "n_parts: found 2, which is not done here, wanted -1"),
        ({"device": "cuda"}, "device: found 'cuda', which is not done here, wanted None"),
        ({"n_threads": 2, "n_threads_batch": 3}, "n_threads_batch"),
        ({"draft_model": object()}, "draft_model: found object"),
        ({"colour": 1}, "colour: is not an argument of Llama"),
    ),
)
def test_what_is_not_done_at_loading_is_named(options, words):
    with pytest.raises(ConfigError) as caught:
        Llama(MODEL, **options)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("options", "words"),
    (
        ({"suffix": "x"}, "suffix: found 'x', which is not done here"),
        ({"stopping_criteria": [len]}, "stopping_criteria: found list, wanted a StoppingCriteria"),
        ({"tfs_z": 0.5}, "tfs_z: found 0.5"),
        ({"grammar": 5}, "grammar: found int, wanted a LlamaGrammar"),
    ),
)
def test_what_is_not_done_in_a_completion_is_named(llm, options, words):
    with pytest.raises(ConfigError) as caught:
        llm("Once", **options)
    assert words in str(caught.value)
    with pytest.raises(ConfigError, match="cache: found"):
        llm.set_cache(object())
    with pytest.raises(ConfigError, match="LlamaDiskCache: is not done here, wanted LlamaRAMCa"):
        llm.set_cache(LlamaDiskCache(capacity_bytes=1 << 20))


def test_results_may_be_of_the_classes_of_openai(llm, monkeypatch):
    made = SimpleNamespace(ChatCompletion=SimpleNamespace, ChatCompletionChunk=SimpleNamespace)
    ask = {"max_tokens": 6, "temperature": 0}
    monkeypatch.setitem(sys.modules, "openai.types.chat", None)
    with pytest.raises(ImportError, match="create_chat_completion_openai_v1: needs the package op"):
        llm.create_chat_completion_openai_v1(ASKED)
    assert inspect.signature(Llama.__call__) == inspect.signature(Llama.create_completion)
    parameters = inspect.signature(Llama.create_chat_completion).parameters
    assert inspect.signature(Llama.create_chat_completion_openai_v1).parameters == parameters
    monkeypatch.setitem(sys.modules, "openai.types.chat", made)
    wanted = llm.create_chat_completion(ASKED, **ask)
    done = llm.create_chat_completion_openai_v1(messages=ASKED, **ask)
    assert (done.choices, done.usage) == (wanted["choices"], wanted["usage"])
    chunks = [*llm.create_chat_completion_openai_v1(ASKED, stream=True, **ask)]
    text = "".join(each.choices[0]["delta"].get("content", "") for each in chunks)
    assert text == wanted["choices"][0]["message"]["content"] != ""


def test_offsets_count_from_the_beginning_of_the_prompt(llm):
    ask = {"max_tokens": 4, "temperature": 0, "logprobs": 1}
    prompt = "Once upon a time"
    whole = llm(prompt, echo=True, **ask)["choices"][0]
    found = llm(prompt, **ask)["choices"][0]["logprobs"]
    assert found["text_offset"][0] == len(prompt)
    for token, offset in zip(found["tokens"], found["text_offset"]):
        assert whole["text"][offset:].startswith(token)
    count = len(found["tokens"])
    assert {name: values[-count:] for name, values in whole["logprobs"].items()} == found
    pieces = [each["choices"][0]["logprobs"] for each in llm(prompt, stream=True, **ask)]
    for name, values in found.items():
        assert [value for each in pieces for value in each[name]] == values
    of_ids = llm(llm.tokenize(prompt.encode()), **ask)["choices"][0]["logprobs"]
    assert of_ids == found


@pytest.mark.parametrize("every", [True, False])
def test_logits_after_a_completion_are_those_of_its_tokens(engine, every):
    with Llama(MODEL, n_threads=1, logits_all=every) as llm:
        llm("Once upon", max_tokens=3, temperature=0)
        tokens = list(llm.eval_tokens)
        wanted = engine.logits(tokens)
        kept = wanted if every else wanted[-1:]
        assert np.array_equal(llm.scores[-len(kept) :], kept)
        assert list(llm.eval_logits) == kept.tolist()
        assert list(llm.eval_tokens) == tokens
        assert llm.sample(temp=0.0) == wanted[-1].argmax()
        llm.eval([tokens[0]])
        assert np.array_equal(llm.scores[-1], engine.logits([*tokens, tokens[0]])[-1])


def test_logits_that_were_read_in_the_middle_of_a_stream_are_not_those_of_its_end(engine):
    with Llama(MODEL, n_threads=1, logits_all=True) as llm:
        pieces = llm("Once upon", max_tokens=100, temperature=0, stream=True)
        next(pieces)
        early = llm.scores
        assert 0 < len(early) < 50
        list(pieces)
        wanted = engine.logits(list(llm.eval_tokens))
        assert np.array_equal(llm.scores, wanted) and np.array_equal(early, wanted[: len(early)])


def test_a_model_is_pickled_as_what_it_was_made_with(llm):
    llm.set_seed(7)
    again = pickle.loads(pickle.dumps(llm))
    ask = {"max_tokens": 8, "temperature": 2.0}
    with again:
        assert again.n_ctx() == 512 and again.engine is not llm.engine
        assert again("Once", **ask)["choices"] == llm("Once", **ask)["choices"]
        assert repr(again) == f"<Llama {MODEL!r}>"
    assert repr(again) == f"<Llama {MODEL!r}, closed>"


def test_what_programs_look_up(llm):
    assert llm.n_batch >= 1 and llm.last_n_tokens_size == 64 and llm.draft_model is None
    cache = LlamaRAMCache()
    llm.set_cache(cache)
    assert llm.cache is cache
    llm.set_cache(None)
    assert llm.cache is None
    words, text = llm.tokenizer(), "Käse<|end|>"
    ids = words.encode(text)
    assert ids == llm.tokenize(text.encode(), special=True) == words.tokenize(text.encode())
    assert ids != words.encode(text, special=False) and words.decode(ids) == "Käse"
    assert isinstance(words, LlamaTokenizer) and words.detokenize(ids) == "Käse".encode()
    # as processors and criteria are given them
    assert llm.detokenize(np.array(ids[1:]), prev_tokens=np.array(ids[:1])) == "Käse".encode()
    llm.set_seed(5)
    state = llm.save_state()
    assert (state.seed, state.llama_state_size) == (5, len(state.llama_state))
    llm.set_seed(6)
    llm.load_state(state)
    drawn = llm("Once", temperature=2.0)["choices"]
    llm.set_seed(5)
    assert drawn == llm("Once", temperature=2.0)["choices"]
    llm.set_seed(7)


def test_a_prompt_that_is_too_long_is_a_value_error(llm):
    with pytest.raises(ValueError, match="a context of 512 takes at most 511"):
        llm("fox " * 700)


def test_a_model_of_the_hub_by_its_name(monkeypatch, tmp_path):
    import huggingface_hub

    class Api:
        def model_info(self, repo):
            names = ("m-Q4_K_M.gguf", "m-Q8_0.gguf")
            return SimpleNamespace(siblings=[SimpleNamespace(rfilename=name) for name in names])

    monkeypatch.setattr(huggingface_hub, "HfApi", Api)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", lambda repo, name: MODEL)
    options = {"n_threads": 1, "local_dir": None, "use_mmap": True}
    with Llama.from_pretrained("owner/name", filename="*Q8_0.gguf", **options) as llm:
        assert llm("Once", max_tokens=1)["choices"][0]["text"]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"local_dir": "models"}, "local_dir: found 'models', which is not done here, wanted None"),
        ({"n_gpu_layers": 5}, "n_gpu_layers: found 5, which is not done here, wanted 0"),
        ({"n_treads": 2}, "n_treads: .*; did you mean n_threads?"),
    ],
)
def test_nothing_is_fetched_for_arguments_that_are_refused(monkeypatch, options, error):
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub, "HfApi", None)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", None)
    with pytest.raises(ConfigError, match=f"^{error}"):
        Llama.from_pretrained("owner/name", "*Q8_0.gguf", **options)


@pytest.mark.parametrize(
    ("prompt", "options", "error"),
    [
        (b"Once", {}, "prompt: found bytes, wanted text or token ids"),
        (5, {}, "prompt: found int, wanted text or token ids"),
        (None, {}, "prompt: found NoneType, wanted text or token ids"),
        ("Once", {"temperature": "hot"}, "temperature: found 'hot', wanted a finite number"),
        ("Once", {"top_k": "all"}, "top_k: found 'all', wanted an integer"),
        ("Once", {"max_tokens": "x"}, "max_tokens: found 'x', wanted an integer"),
        ("Once", {"echo": "yes"}, "echo: found 'yes', wanted True or False"),
        ("Once", {"stream": "no"}, "stream: found 'no', wanted True or False"),
        ("Once", {"stop": ""}, "stop: found"),
        ("Once", {"seed": -2}, "seed: found -2, wanted an integer of 0 or more"),
        ("Once", {"logit_bias": [5]}, "logit_bias: found list, wanted a mapping of token id"),
        ("Once", {"logit_bias": {"a": 1}}, "logit_bias: found 'a' as a token, wanted its id"),
        ("Once", {"logit_bias": {5.5: 1}}, "logit_bias: found 5.5 as a token, wanted its id"),
        ("Once", {"logit_bias": {-1: 1}}, "logit_bias: found -1 as a token, wanted its id"),
    ],
)
def test_a_value_of_a_wrong_type_is_one_error_that_names_it(llm, prompt, options, error):
    with pytest.raises(ConfigError, match=f"^{error}"):
        llm(prompt, **options)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda llm: Llama(None), "model_path: found NoneType, wanted a path"),
        (lambda llm: Llama(MODEL, n_treads=2), "n_treads: .* of Llama; did you mean n_threads?"),
        (lambda llm: llm.detokenize("ab"), "tokens: found str, wanted token ids"),
        (lambda llm: llm.detokenize([1.5]), r"tokens\[0\]: found float 1.5, wanted a token id"),
        (
            lambda llm: llm.create_chat_completion(ASKED, response_format="json"),
            "response_format: found 'json', wanted a type of text",
        ),
        (lambda llm: llm.create_chat_completion("Hello"), "messages: found str, wanted a list"),
        (
            lambda llm: llm.create_chat_completion(ASKED, logprobs=5),
            "logprobs: found 5, wanted True or False",
        ),
    ],
)
def test_other_values_of_a_wrong_type_are_one_error_too(llm, call, error):
    with pytest.raises(ConfigError, match=f"^{error}"):
        call(llm)


def test_texts_to_embed_are_texts():
    with Llama(MODEL, embedding=True, pooling_type=1, n_threads=1) as llm:
        for wrong, error in (
            (5, "input: found int, wanted a text or a list of texts"),
            (b"a", "input: found bytes, wanted a text or a list of texts"),
            (["a", 5], r"input\[1\]: found int, wanted text or token ids"),
        ):
            for call in (llm.embed, llm.create_embedding):
                with pytest.raises(ConfigError, match=f"^{error}"):
                    call(wrong)


def test_a_closed_model_says_so():
    made = Llama(model_path=MODEL, verbose=False)
    made.close()
    made.close()
    with pytest.raises(EngineError, match="^Llama: is closed$"):
        made("Once")


def test_a_model_with_an_encoder_answers_what_it_reads(tmp_path):
    text, drawn = "a source of words", []
    with Llama(model_path=str(worded(tmp_path)), n_threads=1) as llm:
        made = llm(text, max_tokens=7, temperature=0.0, repeat_penalty=1.7, seed=1)
        source = llm.tokenize(text.encode())
        for token in llm.generate(source, temp=0.0, top_k=0, repeat_penalty=1.7):
            drawn.append(token)
            if len(drawn) == 7:
                break
        assert llm.detokenize(drawn).decode().strip() == made["choices"][0]["text"].strip()
        assert llm.input_ids.tolist() == [*source, 0, *drawn[:-1]]
        llm.reset()
        llm.eval(source)
        row = llm.scores[-1].copy()
        state = llm.save_state()
        llm.eval(drawn[:2])
        llm.load_state(state)
        assert llm.n_tokens == len(source) + 1 and np.array_equal(llm.scores[-1], row)


@pytest.mark.parametrize(
    ("asked", "said"),
    (
        ({"function_call": "auto"}, "function_call: found 'auto' without functions, wanted both"),
        (
            {"functions": [WEATHER], "tool_choice": "none"},
            "tool_choice: found together with functions, wanted one form of them",
        ),
        (
            {"functions": [WEATHER], "tools": []},
            "tools: found together with functions, wanted one form of them",
        ),
        ({"functions": 5}, "functions: found int, wanted a list of mappings"),
        ({"functions": [WEATHER, 5]}, r"functions\[1\]: found int, wanted a mapping with a name"),
        ({"tool_choice": "required"}, "tool_choice: found 'required' without tools"),
        ({"logits_processor": 5}, "logits_processor: found 5, wanted a LogitsProcessorList or a"),
        ({"logits_processor": [5]}, r"logits_processor: found \[5\], wanted a LogitsProcessorList"),
        ({"stop": [["a"]]}, r"stop: found \(\['a'\],\), wanted a text or a list of texts"),
    ),
    ids=str,
)
def test_what_a_chat_cannot_mean_is_refused_by_name(llm, asked, said):
    with pytest.raises(ConfigError, match=f"^{said}"):
        llm.create_chat_completion(ASKED, max_tokens=2, **asked)


def test_a_single_function_is_a_logits_processor(llm):
    ask = {"prompt": "Once upon a time", "max_tokens": 4, "temperature": 0}

    def only(ids, scores):
        scores[:] = -np.inf
        scores[9] = 0
        return scores

    wanted = llm(**ask, logits_processor=LogitsProcessorList([only]))["choices"]
    assert llm(**ask, logits_processor=only)["choices"] == wanted != llm(**ask)["choices"]
    llm.eval([5])
    assert llm.sample(logits_processor=only) == 9


def test_what_is_no_token_number_or_schema_is_named(llm):
    llm.reset()
    llm.eval([5, 9])
    for call, said in (
        (lambda: llm.eval(5), "tokens: found int, wanted token ids"),
        (lambda: llm.eval("ab"), "tokens: found str, wanted token ids"),
        (lambda: next(llm.generate(5, reset=False)), "tokens: found int, wanted token ids"),
        (lambda: llm.sample(idx="x"), "idx: found 'x', wanted an integer"),
        (lambda: llm.sample(logits_processor=5), "logits_processor: found 5, wanted"),
        (lambda: llm.sample(logit_bias=5), "logit_bias: found int, wanted a mapping"),
        (lambda: llm.detokenize([5], prev_tokens=5), "prev_tokens: found int, wanted token ids"),
        (lambda: LlamaGrammar.from_json_schema({}), "json_schema: found dict, wanted the text of"),
        (lambda: LlamaGrammar.from_json_schema("x"), r"json_schema: found no JSON \(Expecting"),
    ):
        with pytest.raises(ConfigError, match=f"^{said}"):
            call()
    assert llm.input_ids.tolist() == [5, 9]
    assert llm.sample(temp=0.0, logit_bias={"7": 1e9}) == 7
