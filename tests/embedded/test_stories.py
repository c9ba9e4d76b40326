"""The embedded model, through the public face, tells whole stories and answers from its world's
facts.
"""

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest

import oxillama
from oxillama import SamplerConfig

GOLDEN = json.loads((Path(__file__).parent / "golden.json").read_text())["cases"]
TOOLS = Path(__file__).parents[2] / "tools"
CLEAR = 1.0  # logits: several times what 8-bit activations move the distance between two scores


@pytest.fixture(scope="module")
def engine():
    with oxillama.load() as opened:
        yield opened


@pytest.fixture(scope="module")
def people():
    sys.path.insert(0, str(TOOLS))
    try:
        from story_world import PEOPLE

        return PEOPLE
    finally:
        sys.path.remove(str(TOOLS))


def reply(engine, *contents, system=None):
    """The last answer of a conversation in which the user says `contents` one after another."""
    messages = [{"role": "system", "content": system}] if system else []
    for content in contents:
        messages.append({"role": "user", "content": content})
        messages.append(
            {
                "role": "assistant",
                "content": engine.chat(
                    messages, sampler=SamplerConfig.greedy(), max_tokens=320
                ).text,
            }
        )
    return messages[-1]["content"]


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: case["text"][:20])
def test_every_clear_choice_of_the_reference_is_the_engines(engine, case):
    logits = engine.logits(case["prompt_ids"] + case["ids"][:-1])[len(case["prompt_ids"]) - 1 :]
    clear = np.array(case["margins"]) > CLEAR
    assert clear.mean() > 0.7
    assert list(logits.argmax(1)[clear]) == list(np.array(case["ids"])[clear])


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: case["text"][:20])
def test_prompts_have_the_reference_ids(engine, case):
    assert (
        engine.tokenize(
            case["rendered"], add_special=isinstance(case["prompt"], str), parse_special=True
        )
        == case["prompt_ids"]
    )


@pytest.mark.parametrize("seed", [None, 1, 2, 3])
def test_a_story_keeps_its_hero_and_ends_by_itself(engine, seed):
    sampler = (
        SamplerConfig.greedy()
        if seed is None
        else SamplerConfig(temperature=0.7, repetition_penalty=1.0, seed=seed)
    )
    done = engine.generate("Once upon a time", max_tokens=400, sampler=sampler)
    sentences = re.split(r"(?<=[.!?])\s", done.text.strip())
    hero = next(
        name
        for name in re.findall(r"\b[A-Z][a-z]+\b", done.text)
        if name not in ("Once", "He", "She")
    )
    assert done.finish_reason == "stop"
    assert 8 <= len(sentences) <= 40
    assert sum(hero in sentence for sentence in sentences) >= 4
    assert any(hero in sentence for sentence in sentences[-4:])


def test_a_story_is_about_what_was_asked_for(engine):
    story = reply(engine, "Tell me a story about a fox and a lantern.")
    assert "fox" in story and "lantern" in story


def test_the_narrator_knows_where_everybody_lives(engine, people):
    assert [
        p.name for p in people if p.home not in reply(engine, f"Where does {p.name} live?")
    ] == []


def test_a_pronoun_means_the_one_last_spoken_of(engine):
    assert "honey" in reply(engine, "Where does Bruno live?", "What does he like to eat?")


def test_what_lies_outside_the_valley_is_not_made_up(engine):
    assert "do not know" in reply(engine, "What is the capital of France?")
