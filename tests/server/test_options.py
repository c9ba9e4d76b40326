"""One table of options: every name of an option sets the same field, and nothing is passed over."""

import pytest

from oxillama.sampling import REORDERABLE, DiffusionConfig, SamplerConfig
from oxillama.server import options
from oxillama.server.errors import ApiError
from oxillama.server.schema import check_body
from tests.server.conftest import asking

DEFAULT = SamplerConfig()


def read(body):
    return options.read(body, default=DEFAULT, vocab_size=2048)


VALUES = {
    "temperature": (0.3, 0.3),
    "top_k": (7, 7),
    "top_p": (0.5, 0.5),
    "min_p": (0.1, 0.1),
    "typical_p": (0.4, 0.4),
    "top_a": (0.2, 0.2),
    "eta_cutoff": (0.01, 0.01),
    "epsilon_cutoff": (0.02, 0.02),
    "top_n_sigma": (1.5, 1.5),
    "repetition_penalty": (1.3, 1.3),
    "repetition_window": (32, 32),
    "frequency_penalty": (0.5, 0.5),
    "presence_penalty": (-0.5, -0.5),
    "mirostat": (2, 2),
    "mirostat_tau": (4, 4.0),
    "mirostat_eta": (0.2, 0.2),
    "dry_multiplier": (0.8, 0.8),
    "dry_base": (2, 2.0),
    "dry_allowed_length": (3, 3),
    "dry_penalty_last_n": (64, 64),
    "dry_sequence_breakers": (["x"], ("x",)),
    "xtc_probability": (0.5, 0.5),
    "xtc_threshold": (0.2, 0.2),
    "dynatemp_range": (0.3, 0.3),
    "dynatemp_exponent": (2, 2.0),
    "logit_bias": ({"5": -1}, {5: -1.0}),
    "banned_tokens": ([3], (3,)),
    "allowed_tokens": ([3, 4], (3, 4)),
    "ignore_eos": (True, True),
    "min_tokens": (2, 2),
    "samplers": (["top_k", "typ_p", "temperature"], ("top_k", "typical", "temperature")),
}


@pytest.mark.parametrize(
    "name, option", [(name, option) for option in options.SAMPLER for name in option.names]
)
def test_every_name_of_a_sampler_option_sets_its_field(name, option):
    given, wanted = VALUES[option.field]
    asked = read({name: given})
    assert getattr(asked.sampler, option.field) == wanted
    assert asked.options == {"sampling_fields": {option.field: wanted}}


def test_every_field_of_the_sampler_has_a_name():
    fields = set(SamplerConfig().to_dict()) - {"stop", "stop_token_ids", "seed"}
    assert {option.field for option in options.SAMPLER} == fields
    assert set(options._STAGES.values()) == set(REORDERABLE)


@pytest.mark.parametrize(
    "name, given, field, wanted",
    [
        ("seed", 7, "seed", 7),
        ("seed", -5, "seed", 2**64 - 5),
        ("stop", "x", "stop", ("x",)),
        ("stop_sequences", ["x", "y"], "stop", ("x", "y")),
        ("stop_token_ids", [1], "stop_token_ids", (1,)),
        ("stop_token_ids", [1.0], "stop_token_ids", (1,)),
        ("regex", "a+", "regex", "a+"),
        ("guided_regex", "a+", "regex", "a+"),
        ("guided_choice", ["a"], "choices", ("a",)),
        ("json_schema", {}, "json_schema", {}),
        ("cache_prompt", False, "cache_prompt", False),
        ("speculative", True, "speculative", "auto"),
        ("diffusion", {"steps": 4, "eps": None}, "diffusion", DiffusionConfig(steps=4)),
        ("priority", -3, "priority", -3),
    ],
)
def test_options_of_a_request(name, given, field, wanted):
    assert read({name: given}).options == {field: wanted}


def test_json_object_of_structured_outputs_asks_for_any_object():
    asked = read({"structured_outputs": {"json_object": True, "regex": None}})
    assert asked.options == {"json_schema": {"type": "object"}}
    assert asked.constraint == "structured_outputs.json_object"
    asked = read({"structured_outputs": {"json_object": False, "regex": "a"}})
    assert asked.options == {"regex": "a"}


def test_minus_one_turns_off_as_it_does_elsewhere():
    assert read({"seed": -1}).options == {"seed": -1} and read({"seed": None}).options == {}
    # as clients of llama.cpp send it where another constraint is asked for
    assert read({"grammar": "", "regex": "a"}).options == {"regex": "a"}
    assert read({"top_k": -1}).sampler.top_k == 0
    sigma = SamplerConfig(top_n_sigma=1.0)
    for off in (-1, 0):
        asked = options.read({"top_n_sigma": off}, default=sigma, vocab_size=2048)
        assert asked.sampler.top_n_sigma is None
        assert asked.options == {"sampling_fields": {"top_n_sigma": None}}


def test_there_is_no_penalty_unless_one_is_named():
    assert read({"temperature": 0}).sampler.repetition_penalty == 1.0
    assert read({"temperature": 1}).sampler.repetition_penalty == 1.0
    both = read({"temperature": 0, "repeat_penalty": 1.2})
    assert both.sampler.repetition_penalty == 1.2


def test_biases_as_llama_server_lists_them():
    asked = read({"logit_bias": [[5, 1.5], [6, False]]})
    assert asked.sampler.logit_bias == {5: 1.5, 6: float("-inf")}


@pytest.mark.parametrize(
    "pair, said",
    [
        ([1.5, 3], "logit_bias[0][0]: found 1.5, wanted an integer in [0, 2147483647]"),
        ([False, 3], "logit_bias[0][0]: found false, wanted an integer in [0, 2147483647]"),
        ([3, -101], "logit_bias[0][1]: found -101, wanted a number in [-100, 100]"),
        ([3, True], "logit_bias[0][1]: found true, wanted false"),
        ([3], "logit_bias[0]: found 1 item, wanted 2"),
    ],
)
def test_a_pair_of_a_list_of_biases_is_a_token_and_its_bias(pair, said):
    with pytest.raises(ApiError) as caught:
        check_body({"logit_bias": [pair]}, {"properties": options.properties()})
    assert str(caught.value) == said


@pytest.mark.parametrize(
    "body, param",
    [
        ({"temperature": 1, "temp": 1}, "temp"),
        ({"repeat_penalty": 1, "repetition_penalty": 1}, "repetition_penalty"),
        ({"regex": "a", "choices": ["a"]}, "choices"),
        ({"json_schema": {}, "structured_outputs": {"regex": "a"}}, "structured_outputs.regex"),
        ({"regex": "a", "structured_outputs": {"regex": "a"}}, "structured_outputs.regex"),
        (
            {"structured_outputs": {"json": {}, "json_object": True}},
            "structured_outputs.json_object",
        ),
        ({"logit_bias": {"2048": 1}}, "logit_bias"),
        ({"logit_bias": [[5, 1], [6, 1], [5, 2]]}, "logit_bias"),
        ({"banned_tokens": [2048]}, "banned_tokens"),
        ({"allowed_token_ids": [2048]}, "allowed_token_ids"),
        ({"stop_token_ids": [2048]}, "stop_token_ids"),
        ({"n_keep": 3}, "n_keep"),
        ({"samplers": ["top_k", "top_k"]}, "samplers"),
        ({"top_nsigma": 1e-7}, "top_nsigma"),
    ],
)
def test_what_cannot_be_honoured_is_named(body, param):
    with pytest.raises(ApiError) as caught:
        read(body)
    assert (caught.value.status, caught.value.param) == (400, param)


def test_a_penalty_too_small_for_the_sampler_is_refused_by_its_schema():
    with pytest.raises(ApiError, match="repeat_penalty: found 1e-07, wanted a number in"):
        check_body({"repeat_penalty": 1e-7}, {"properties": options.properties()})


HI = [{"role": "user", "content": "Tell me a story."}]
# no two draws give the same text, and none ends before it has one
FLAT = {"temperature": 2, "top_k": 0, "top_p": 1, "ignore_eos": True}


@pytest.mark.parametrize(
    ("path", "body", "text"),
    [
        ("/v1/completions", {"prompt": "Once", "max_tokens": 24},
         lambda made: made["choices"][0]["text"]),
        ("/v1/chat/completions", {"messages": HI, "max_tokens": 24},
         lambda made: made["choices"][0]["message"]["content"]),
        ("/v1/messages", {"messages": HI, "max_tokens": 24},
         lambda made: made["content"][0]["text"]),
        ("/v1/responses", {"input": "Tell me a story.", "max_output_tokens": 24},
         lambda made: made["output"][0]["content"][0]["text"]),
        ("/completion", {"prompt": "Once", "n_predict": 24}, lambda made: made["content"]),
    ],
)  # fmt: skip
def test_a_seed_of_minus_one_is_random_and_null_is_none(seeded, path, body, text):
    def answered(**seed):
        return text(seeded.ok(path, {**body, **FLAT, **seed}))

    usual = answered()
    assert usual == answered(seed=None) == answered(seed=7)
    assert len({usual, answered(seed=-1), answered(seed=-1)}) == 3


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": HI, "max_tokens": 4}),
        ("/v1/completions", {"prompt": "Once", "max_tokens": 4}),
        ("/v1/messages", {"messages": HI, "max_tokens": 4}),
        ("/completion", {"prompt": "Once", "n_predict": 4}),
    ],
)
def test_an_unknown_field_that_is_null_asks_for_nothing(seeded, path, body):
    assert seeded.ok(path, {**body, "haste": None})
    assert "haste: is not a known field" in str(seeded.refused(path, {**body, "haste": 0}))


def test_the_seed_drawn_is_told(seeded):
    def used(**seed):
        made = seeded.ok("/completion", {"prompt": "Once", "n_predict": 1, **seed})
        return made["generation_settings"]["seed"]

    drawn = used(seed=-1)
    assert used() == 7 and drawn not in (-1, 7) and used(seed=drawn) == drawn


def test_ollamas_seed_of_minus_one_is_random(seeded):
    def answered(**seed):
        body = {"model": "oxillama-embedded", "prompt": "Once", "raw": True, "stream": False}
        options = {**FLAT, "num_predict": 24, **seed}
        return seeded.ok("/api/generate", {**body, "options": options})["response"]

    assert answered() == answered(seed=7)
    assert len({answered(), answered(seed=-1), answered(seed=-1)}) == 3


@pytest.fixture(scope="module")
def seeded():
    """A server whose sampler has a seed."""
    with asking(engine={"sampler": SamplerConfig(seed=7)}) as made:
        yield made


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_what_vllm_does_by_default_may_be_asked_for(server, path):
    asked = {"skip_special_tokens": True, "spaces_between_special_tokens": True, "bad_words": []}
    asked |= {"include_stop_str_in_output": False, "use_beam_search": False, "length_penalty": 1.0}
    asked |= {"truncate_prompt_tokens": None, "prompt_logprobs": None, "return_token_ids": False}
    body = {"messages": HI} if "chat" in path else {"prompt": "Once"}
    body |= {"max_tokens": 4, "temperature": 0}
    assert server.ok(path, {**body, **asked})["choices"] == server.ok(path, body)["choices"]
    wrong = {"skip_special_tokens": False, "include_stop_str_in_output": True, "bad_words": ["a"]}
    wrong |= {"use_beam_search": True, "truncate_prompt_tokens": 5}
    for name, value in wrong.items():
        assert server.refused(path, {**body, name: value})["param"] == name
