"""Datasets put through actors say what one engine says, row for row, whatever dies meanwhile."""

import asyncio
import json
import os

import numpy as np
import pyarrow as pa
import pytest
import ray

from oxillama import ConfigError
from oxillama.integrations.ray import (
    OxillamaPredictor,
    OxillamaProcessorConfig,
    build_processor,
)
from oxillama.integrations.ray.rows import pack, unpack

MEMORY = 300 << 20
NAMES = ("dog", "cat", "fox", "pony", "owl")
SCHEMA = {"enum": ["red", "blue"]}


def prompts(count):
    return [f"Once upon a time {NAMES[at % 5]} number {at} said" for at in range(count)]


def run(rows, config, preprocess=None, postprocess=None, *, blocks=8, **more):
    config = OxillamaProcessorConfig(memory=MEMORY, **config)
    made = build_processor(config, preprocess, postprocess, **more)
    return made(ray.data.from_items(rows, override_num_blocks=blocks)).take_all()


def said(done):
    """The columns that an engine's completion comes to."""
    return {
        "generated_text": done.text,
        "generated_tokens": list(done.tokens),
        "num_input_tokens": done.usage.prompt_tokens,
        "num_generated_tokens": done.usage.completion_tokens,
        "finish_reason": done.finish_reason,
    }


def looked_at(row):
    names = ("generated_text", "num_input_tokens", "num_generated_tokens", "finish_reason")
    return {name: row[name] for name in names} | {
        "generated_tokens": [int(token) for token in row["generated_tokens"]]
    }


def test_two_thousand_prompts_are_those_of_one_process_and_a_killed_actor_loses_none(
    cluster, engine, tmp_path
):
    texts, flag = prompts(2000), str(tmp_path / "killed")

    def asked(row):
        if row["id"] == 700 and not os.path.exists(flag):
            with open(flag, "w"):
                pass
            os._exit(1)  # the actor, in the middle of its batches
        params = {"max_tokens": 3, "temperature": 0.8, "seed": row["id"]}
        return {"prompt": row["text"], "sampling_params": params}

    found = run(
        [{"id": at, "text": text} for at, text in enumerate(texts)],
        {"concurrency": 2, "batch_size": 50},
        asked,
    )
    assert os.path.exists(flag)
    requests = [
        engine.submit(text, max_tokens=3, temperature=0.8, seed=at) for at, text in enumerate(texts)
    ]
    assert [row["id"] for row in found] == list(range(2000))
    assert [looked_at(row) for row in found] == [said(request.result()) for request in requests]


def answers(rows, preprocess=None, postprocess=None, **config):
    """What the actor's object says of rows, ten at a time, in this process."""
    made = OxillamaPredictor(
        OxillamaProcessorConfig(**config), preprocess=preprocess, postprocess=postprocess
    )
    out = []
    for at in range(0, len(rows), 10):
        found = asyncio.run(made(pa.Table.from_pylist(rows[at : at + 10])))
        found = found.to_pydict() if isinstance(found, pa.Table) else found
        out += [dict(zip(found, each)) for each in zip(*found.values())]
    made.engine.close()
    return out


def test_chats_texts_ids_and_schemas_go_together_and_a_row_that_fails_is_a_row(engine):
    talk = [{"role": "user", "content": "hi"}]
    rows = [
        {"messages": talk, "sampling_params": {"max_tokens": 6}},
        {"prompt": "Once", "sampling_params": {"structured_outputs": {"json": SCHEMA}}},
        {"prompt": "Once", "sampling_params": {"max_tokens": 2, "colour": "red"}},
        {"tokenized_prompt": [5, 6, 7], "sampling_params": {"max_tokens": 2}},
        {"sampling_params": {"max_tokens": 2}},
        {"prompt": "a " * 2000, "sampling_params": {"max_tokens": 2}},
    ]
    found = answers(
        [{"asked": json.dumps(row)} for row in rows],
        lambda row: json.loads(row["asked"]),
        should_continue_on_error=True,
        sampling_params={"temperature": 0},
    )
    wanted = [
        said(engine.chat(talk, max_tokens=6, temperature=0)),
        said(engine.generate("Once", json_schema=SCHEMA, temperature=0)),
        said(engine.generate([5, 6, 7], max_tokens=2, temperature=0)),
    ]
    assert [looked_at(found[at]) for at in (0, 1, 3)] == wanted
    assert json.loads(found[1]["generated_text"]) in SCHEMA["enum"]
    errors = [row["__inference_error__"] for row in found]
    assert [bool(each) for each in errors] == [False, False, True, False, True, True]
    assert "colour" in errors[2] and "found none of them" in errors[4] and "context" in errors[5]
    assert found[2]["generated_text"] == "" and list(found[2]["generated_tokens"]) == []


def test_a_row_that_fails_ends_the_job_unless_told_otherwise():
    with pytest.raises(ConfigError, match="colour"):
        answers([{"prompt": "Once", "sampling_params": {"colour": 1}}])


def test_functions_may_be_stages_of_their_own(cluster, engine):
    params = {"max_tokens": 3, "seed": 1}
    found = run(
        [{"id": at} for at in range(3)],
        {},
        lambda row: {"prompt": f"Once {row['id']}", "sampling_params": params},
        lambda row: {
            "id": row["id"],
            "params": row["sampling_params"],
            "text": row["generated_text"],
        },
        blocks=1,  # Ray starts a process for each that a stage has at once
        preprocess_map_kwargs={"num_cpus": 0.1},
        postprocess_map_kwargs={"num_cpus": 0.1},
    )
    assert found == [
        {"id": at, "params": params, "text": engine.generate(f"Once {at}", **params).text}
        for at in range(3)
    ]


def test_a_prompt_stays_what_it_was_when_the_context_shifts():
    options = {"max_tokens": 60, "context_shift": True, "keep": 4, "ignore_eos": True}
    config = OxillamaProcessorConfig(engine_kwargs={"n_ctx": 48}, num_threads=1)
    ids = [1, *range(300, 330)]
    rows = [{"tokenized_prompt": ids, "sampling_params": {**options, "temperature": 0}}]
    predictor = OxillamaPredictor(config)
    (made,) = asyncio.run(predictor(pa.Table.from_pylist(rows))).to_pylist()
    predictor.engine.close()
    assert made["prompt_token_ids"] == ids and made["num_input_tokens"] == len(ids)
    assert made["num_generated_tokens"] == 60


def test_numpy_batches_are_answered_alike(engine):
    made = OxillamaPredictor(sampling_params={"max_tokens": 3, "temperature": 0})
    batch = {"prompt": np.array(["Once", "A fox"], object), "id": np.arange(2)}
    found = asyncio.run(made(batch))
    made.engine.close()
    wanted = engine.generate(["Once", "A fox"], max_tokens=3, temperature=0)
    assert list(found["generated_text"]) == [done.text for done in wanted]
    assert list(found["id"]) == [0, 1]


def test_embeddings_are_those_of_the_engine(engine):
    texts = prompts(40)
    found = answers([{"prompt": text} for text in texts], task_type="embed")
    wanted = engine.embed_batch(texts)
    assert np.array_equal(np.stack([np.asarray(row["embeddings"], "f4") for row in found]), wanted)
    assert [row["num_input_tokens"] for row in found] == [len(engine.tokenize(t)) for t in texts]


def test_a_job_that_was_stopped_goes_on_where_it_was(tmp_path):
    rows = [{"id": at, "text": text} for at, text in enumerate(prompts(60))]
    folder, params = tmp_path / "done", {"max_tokens": 3}

    def asked(row):
        if row["id"] == 45:
            return {"prompt": row["text"], "sampling_params": {"no_such": 1}}
        return {"prompt": row["text"], "sampling_params": params}

    def whole(row):
        return {"prompt": row["text"], "sampling_params": params}

    config = {"checkpoint": str(folder), "id_column": "id"}
    with pytest.raises(ConfigError, match="no_such"):
        answers(rows, asked, **config)
    before = {path.name: path.read_bytes() for path in folder.glob("part-*")}
    assert len(before) == 4
    found = answers(rows, whole, **config)
    after = {path.name: path.read_bytes() for path in folder.glob("part-*")}
    assert len(after) == 6 and before.items() <= after.items()
    assert [row["id"] for row in found] == list(range(60))
    # no seed was given: these are the draws that were kept, and the seconds that they took
    assert answers(rows, whole, **config) == found
    # which are no errors
    told = answers(rows, whole, should_continue_on_error=True, **config)
    assert [row.pop("__inference_error__") for row in told] == [""] * 60 and told == found
    with pytest.raises(ConfigError, match="row 0 asked something else"):
        answers(rows, lambda row: {"prompt": "other", "sampling_params": params}, **config)
    with pytest.raises(ConfigError, match="of a job with another options"):
        answers(rows, whole, sampling_params={"temperature": 0}, **config)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes").write_text("mine")
    with pytest.raises(ConfigError, match="holds other files"):
        answers(rows, whole, checkpoint=str(tmp_path / "other"), id_column="id")


def test_what_cannot_be_honoured_is_named():
    for wrong, told in (
        ({"concurrency": (3, 2)}, "concurrency: found"),
        ({"concurrency": 0}, "concurrency: found 0"),
        ({"task_type": "classify"}, "task_type: found 'classify'"),
        ({"accelerator_type": "H100"}, "accelerator_type: found 'H100'"),
        ({"detokenize_stage": False}, "detokenize_stage: found False"),
        ({"engine_kwargs": {"num_threads": 2}}, "engine_kwargs: found the number of threads"),
        ({"checkpoint": "x"}, "checkpoint, id_column"),
        ({"colour": 1}, "colour: is not a field"),
    ):
        with pytest.raises(ConfigError, match=told):
            OxillamaProcessorConfig.of(wrong)
    with pytest.raises(ConfigError, match="builder_kwargs"):
        build_processor(OxillamaProcessorConfig(), builder_kwargs={"chat_template_kwargs": {}})


def test_a_schema_that_arrow_filled_with_nulls_is_refused():
    params = {"max_tokens": 2, "seed": None, "json_schema": {"type": "object", "const": None}}
    with pytest.raises(ConfigError, match="sampling_params.json_schema: found nulls"):
        unpack({"sampling_params": params})
    assert unpack({"sampling_params": {"max_tokens": 2, "seed": None}}) == {
        "sampling_params": {"max_tokens": 2}
    }
    assert unpack(pack({"sampling_params": params})) == {"sampling_params": params}
