"""Where prompts go: chats over two caches with a clock of their own find what one cache would give
them, whatever the caches lose and however late that is known.
"""

import heapq
import math
import random
from types import SimpleNamespace

import pytest

from oxillama.engine.memory.prefix import PrefixKvCache
from oxillama.integrations.affinity import Affinity
from oxillama.integrations.fingerprint import (
    HASH,
    MOST,
    PAGE,
    STRIDE,
    Publisher,
    chosen,
    held,
    page_hashes,
    published,
)
from oxillama.media.placement import identities

TURN = 150  # tokens that a turn adds
ANSWER = 4


class Pool:
    """Numbers in place of pages."""

    page_size, window, bare_bytes, near_bytes = PAGE, 0, 1, 0
    memory = SimpleNamespace(page_bytes=1)

    def __init__(self):
        self.made = 0

    def new(self, count):
        self.made += count
        return list(range(self.made - count, self.made))

    def share(self, page):
        pass

    free = share_all = share_near = free_near = share


class Engine:
    """A prefix cache of so many pages, with what a `Publisher` asks of an engine."""

    def __init__(self, clock, pages=1 << 20):
        self.cache = PrefixKvCache(Pool(), max_memory_bytes=pages)
        self.loaded = SimpleNamespace(core=SimpleNamespace(prefix=self.cache, lock=Lock()))
        self.publisher, self.load, self.served = Publisher(clock=clock), 0, 0

    def answer(self, prompt):
        """How many of a prompt's tokens were stored; it is stored with its answer."""
        hit = self.cache.share(prompt, len(prompt) - 1, key=()).length
        whole = [*prompt, *answer(prompt)]
        self.cache.insert(whole, self.cache.pool.new(-(-len(whole) // PAGE)), key=())
        return hit


class Lock:
    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


def answer(prompt):
    return [-1 - (sum(prompt) + at) % 997 for at in range(ANSWER)]


def conversations(
    *, engines, chats=200, turns=5, at_once=8, system=0, pages=1 << 20, routers=1, affinity=True
):
    """A turn of every chat before the next of any, `at_once` side by side: (share of the tokens of
    later turns that was found stored, prompts of each engine). Every two seconds an engine says
    what it holds.
    """
    now = [0.0]
    every = [Engine(lambda: now[0], pages) for _ in range(engines)]
    asked = [Affinity(clock=lambda: now[0]) for _ in range(routers)]
    talks = [[*range(1, system + 1)] for _ in range(chats)]
    ends, told, cached, size = [], 0.0, 0, 0
    chance = random.Random(1)

    def end_one():
        now[0], _, engine = heapq.heappop(ends)
        every[engine].load -= 1

    for number in range(turns):
        for chat, talk in enumerate(talks):
            talk += [
                1000 + (chat * 31 + number * 7 + at * (chat % 5 + 1)) % 4001 for at in range(TURN)
            ]
            while len(ends) >= at_once:
                end_one()
            while told <= now[0]:
                told += 2.0
                for name, each in enumerate(every):
                    said = each.publisher.tell(each)
                    for router in asked:
                        router.update(name, said, *said)
            router, hashes = asked[chance.randrange(routers)], page_hashes(talk)
            loads = {name: each.load for name, each in enumerate(every)}
            to = router.order(loads, hashes)[0] if affinity else chance.randrange(engines)
            router.sent(to, hashes)
            hit = every[to].answer(talk)
            every[to].load += 1
            every[to].served += 1
            if number:
                cached, size = cached + hit, size + len(talk)
            # what is not found is evaluated
            took = 0.05 + (len(talk) - hit) * 0.001 * (0.5 + chance.random())
            heapq.heappush(ends, (now[0] + took, chat, to))
            talk += answer(talk)
        while ends:
            end_one()
    return cached / size, [each.served for each in every]


def test_chats_over_two_engines_find_what_they_find_in_one():
    one, _ = conversations(engines=1)
    two, served = conversations(engines=2)
    by_chance, _ = conversations(engines=2, affinity=False)
    assert two >= 0.99 * one > 1.3 * by_chance
    assert max(served) - min(served) < 100


@pytest.mark.parametrize(
    "more",
    (
        dict(routers=3),  # that know of one another's prompts from the engines alone
        dict(at_once=64),
        dict(system=1000, at_once=4),
        dict(system=1000),
    ),
    ids=str,
)
def test_whoever_asks_and_whatever_all_prompts_begin_with(more):
    alone = {name: value for name, value in more.items() if name != "routers"}
    one, _ = conversations(engines=1, **alone)
    two, served = conversations(engines=2, **more)
    assert two >= 0.95 * one  # ties are drawn
    assert max(served) - min(served) < 100


def test_two_small_caches_keep_together_what_one_of_their_size_does():
    one, _ = conversations(engines=1, pages=6000)
    two, _ = conversations(engines=2, pages=3000)
    roomy, _ = conversations(engines=2, pages=6000)
    assert one < 0.3  # it evicts
    assert two >= 0.9 * one
    assert roomy > 0.7  # each keeps its half of the chats


def test_what_was_evicted_no_longer_draws_and_what_came_later_does():
    now = [0.0]
    engine, router = Engine(lambda: now[0], pages=20), Affinity(clock=lambda: now[0])
    prompts = [[at] * (8 * PAGE - ANSWER) for at in range(4)]  # two fit
    for at, prompt in enumerate(prompts):
        now[0] = 10.0 * at
        engine.answer(prompt)
        router.sent("a", page_hashes(prompt))
        _, reach = said = engine.publisher.tell(engine)
        router.update("a", said, b"", reach)
        assert reach == (math.inf if at < 2 else 20.0)
        assert router.order({"a": 1, "b": 0}, page_hashes(prompt))[0] == "a"
    firsts = [router.order({"a": 1, "b": 0}, page_hashes(each))[0] for each in prompts]
    assert firsts == ["b", "b", "a", "a"]
    router.keep(["b"])
    assert router.order({"a": 1, "b": 0}, page_hashes(prompts[3]))[0] == "b"


def test_half_of_a_prompt_outweighs_as_many_requests_as_may_be_and_less_fewer():
    router = Affinity(overload=8)
    known, hashes = page_hashes(range(256)), page_hashes([*range(256), *range(256)])
    router.sent("a", known)
    assert router.order({"a": 8, "b": 0}, hashes)[0] == "a"  # half
    assert router.order({"a": 9, "b": 0}, hashes)[0] == "b"
    longer = page_hashes([*range(256), *range(256), *range(512)])
    assert router.order({"a": 4, "b": 0}, longer)[0] == "a"  # a quarter
    assert router.order({"a": 5, "b": 0}, longer)[0] == "b"
    for other in range(8):  # by now many begin so
        router.sent("a", page_hashes([*range(256), *[other] * 64]))
    assert router.order({"a": 1, "b": 0}, longer)[0] == "b"
    assert router.order({"a": 0, "b": 0}, longer)[0] == "a"


def test_of_a_prompt_with_an_image_what_comes_before_it_is_told():
    engine, text = Engine(lambda: 0.0), list(range(40))
    image = SimpleNamespace(start=40, end=60, features=SimpleNamespace(digest=(1 << 128) - 1))
    engine.answer(identities([*text, *[3] * 20, *range(30)], [image]))
    engine.answer(identities([3] * 20, [SimpleNamespace(start=0, end=20, features=image.features)]))
    data, _ = engine.publisher.tell(engine)
    assert published(data) == set(page_hashes(text)) and len(data) == 2 * HASH


def test_a_fingerprint_has_room_for_many_sequences_and_finds_the_end_of_each():
    engine = Engine(lambda: 0.0)
    prompts = [[at, *range(60 * PAGE)] for at in range(100)]
    for prompt in prompts:
        engine.answer(prompt)
    data, reach = engine.publisher.tell(engine)
    known = published(data)
    assert reach == math.inf and len(known) == len(data) // HASH <= MOST
    for prompt in prompts:
        whole = page_hashes([*prompt, *answer(prompt), *range(100)])
        assert held(whole, known) == 60
        # one that leaves it in the middle finds that to a stride
        assert 0 <= 30 - held(page_hashes([*prompt[: 30 * PAGE], *[7] * 500]), known) < STRIDE
    assert chosen(page_hashes(range(PAGE))) == list(page_hashes(range(PAGE)))
    few, _ = Publisher(most=5).tell(engine)
    assert len(few) == 5 * HASH and few == data[: 5 * HASH]
