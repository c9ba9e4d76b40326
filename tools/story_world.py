"""The facts of Willow Valley, the small invented world in which the embedded model's stories and
chats take place.

People (named animals with a home, a food, a skill, a fear and a friend), skills, things, places and
the word slots that templates fill. `story_plots` tells stories with these facts, `story_chat` holds
conversations about them; every text is written here, none is quoted.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

NARRATOR = "Oxi"


@dataclass(frozen=True, slots=True)
class Person:
    """A living being of a story; `home` is None for visitors, whose facts are not part of the
    world.
    """

    name: str
    kind: str
    female: bool
    trait: str
    home: str
    food: str
    skill: str
    fear: str
    friend: str
    known: bool = True


@dataclass(frozen=True, slots=True)
class Thing:
    """An object that can be owned, lost, broken or shared: `use` completes 'She used it ...',
    `broke` tells how it breaks.
    """

    name: str
    use: str
    broke: str


@dataclass(frozen=True, slots=True)
class Skill:
    """What somebody can do: `can` follows 'can', `did` is the deed in the past tense, `spot` a
    place where that deed is needed.
    """

    can: str
    did: str
    spots: tuple[str, ...]


def _valley() -> tuple[Person, ...]:
    rows = """
    Fern|fox|f|clever|in a den under the old oak|plums|track|thunder|Otto
    Otto|otter|m|cheerful|in a little house by the river|pea soup|swim|high places|Fern
    Hazel|squirrel|f|quick|in the tall pine tree|walnuts|climb|the dark|Pip
    Bruno|bear|m|gentle|in a cave on the hill|honey|lift|loud noises|Bella
    Olive|owl|f|wise|in the old mill|blueberries|night|bright lights|Toby
    Milo|mouse|m|brave|behind the bakery|cheese|squeeze|big shadows|Clara
    Rosie|rabbit|f|shy|in a burrow in the meadow|carrots|run|thunder|Lulu
    Hugo|hedgehog|m|patient|under the garden wall|apples|mend|strong wind|Willa
    Daisy|duck|f|friendly|on the duck pond|bread|swim|deep snow|Finn
    Benny|badger|m|busy|at the edge of the wood|mushrooms|mend|the dark|Ruby
    Pip|robin|m|merry|in the apple tree|cherries|fly|strong wind|Hazel
    Willa|mole|f|quiet|under the green hill|potatoes|dig|bright lights|Hugo
    Toby|turtle|m|calm|by the mossy stones|lettuce|read|loud noises|Olive
    Lulu|lamb|f|sweet|on the little farm|clover|sing|thunder|Rosie
    Finn|frog|m|funny|by the lily pond|pancakes|jump|deep snow|Daisy
    Ruby|raccoon|f|curious|in the hollow log|corn|climb|deep water|Benny
    Clara|cat|f|graceful|in the yellow cottage|milk|night|deep water|Milo
    Oscar|ox|m|strong|in the red barn|hay|lift|big shadows|Poppy
    Lena|llama|f|proud|in the stone hut on the mountain|oat cakes|carry|loud noises|Gus
    Gus|goat|m|stubborn|on the rocky hill|turnips|climb|deep water|Lena
    Bella|bee|f|hard-working|in the garden hive|nectar|fly|strong wind|Bruno
    Rex|dog|m|loyal|next to the farm gate|sausages|track|thunder|Theo
    Poppy|pony|f|happy|in the warm stable|pears|run|big shadows|Oscar
    Theo|deer|m|careful|in the quiet forest|acorns|jump|loud noises|Rex
    """
    people = []
    for line in rows.strip().splitlines():
        name, kind, sex, *rest = line.strip().split("|")
        people.append(Person(name, kind, sex == "f", *rest))
    return tuple(people)


PEOPLE = _valley()
BY_NAME = {p.name: p for p in PEOPLE}
BY_KIND = {p.kind: p for p in PEOPLE}

SKILLS = {
    "track": Skill(
        "find things by their smell",
        "sniffed the ground and followed the trail",
        ("behind a thick bush", "under a pile of leaves"),
    ),
    "swim": Skill(
        "swim under water",
        "dived in with a big splash",
        ("at the bottom of the pond", "at the bottom of the river"),
    ),
    "climb": Skill(
        "climb very well",
        "climbed up, step by step",
        ("high up in the oak tree", "on a branch of the pine tree"),
    ),
    "lift": Skill(
        "lift heavy things", "took a deep breath and lifted the heavy log", ("under a heavy log",)
    ),
    "night": Skill(
        "see in the dark",
        "looked around with big bright eyes",
        ("in a dark cave", "in the dark cellar of the mill"),
    ),
    "squeeze": Skill(
        "slip through tiny holes",
        "slipped inside without a sound",
        ("in a tiny hole in the wall", "in a narrow hollow tree"),
    ),
    "run": Skill(
        "run like the wind",
        "ran down the road like the wind",
        ("on a cart that rolled away", "far down the long road"),
    ),
    "mend": Skill(
        "mend almost anything",
        "worked with a needle, some glue and a little hammer",
        ("in the workshop",),
    ),
    "fly": Skill(
        "fly very high",
        "flew up into the sky",
        ("on the roof of the mill", "on top of the church tower"),
    ),
    "dig": Skill(
        "dig deep holes",
        "dug and dug until the earth flew",
        ("under the soft earth", "deep in a sandy hole"),
    ),
    "read": Skill(
        "read maps and old books",
        "put on a pair of glasses and read every page",
        ("in the library",),
    ),
    "sing": Skill("sing sweet songs", "sang a soft and sweet song", ("in the meadow",)),
    "jump": Skill(
        "jump over anything",
        "jumped over the wide ditch",
        ("on the other side of the ditch", "on a stone in the middle of the stream"),
    ),
    "carry": Skill("carry heavy bags", "carried the heavy bags up the path", ("on the mountain",)),
}
FINDERS = ("track", "swim", "climb", "lift", "night", "squeeze", "run", "fly", "dig", "jump")


def _things() -> tuple[Thing, ...]:
    rows = """
    lantern|to light the path at night|the glass cracked
    kite|to play on windy days|the tail tore off
    drum|to play music in the parade|the skin of the drum split
    bell|to call everyone to supper|the handle snapped
    book|to read by the fire|three pages tore
    map|to find the way|it tore in two
    scarf|to keep warm in the snow|it ripped in the middle
    basket|to carry berries|the handle snapped
    umbrella|to stay dry in the rain|one side bent
    boat|to sail across the pond|the mast snapped
    flute|to play soft songs|it cracked
    hat|to stay cool in the sun|the brim tore
    ball|to play with friends|it split open
    blanket|to keep warm at night|it ripped in the middle
    wagon|to carry wood|a wheel came off
    clock|to know the time|the spring popped out
    key|to open the garden gate|it snapped in two
    cup|to drink warm milk|the handle broke off
    paintbrush|to paint pictures|it snapped in two
    teapot|to make tea for friends|the lid cracked
    mirror|to look at funny faces|the frame broke
    doll|to play on rainy days|one arm came off
    ring|to remember grandmother|it cracked
    bucket|to water the flowers|the bottom fell out
    whistle|to call friends|it cracked
    pillow|to sleep softly|the feathers fell out
    sled|to ride down the snowy hill|the rope snapped
    candle|to read in the evening|it broke in two
    trumpet|to play music on the hill|it bent
    spoon|to stir the soup|it bent
    necklace|to look pretty at parties|the string snapped
    crown|to play king and queen|one side bent
    box|to keep little stones in|the lid broke off
    rope|to climb the rocks|it snapped in two
    marble|to play games with friends|it cracked
    train|to play on the floor|a wheel came off
    boot|to walk in the mud|the sole came off
    pencil|to draw pictures|it snapped in two
    compass|to find the way home|the glass cracked
    swing|to play in the garden|the rope snapped
    """
    return tuple(Thing(*line.strip().split("|")) for line in rows.strip().splitlines())


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


THINGS = _things()
COLOURS = (
    "red",
    "blue",
    "yellow",
    "green",
    "golden",
    "silver",
    "white",
    "brown",
    "purple",
    "orange",
)
PLACES = (
    "in the meadow",
    "by the river",
    "in the forest",
    "on the hill",
    "in the garden",
    "at the market",
    "near the pond",
    "by the old mill",
    "on the farm",
    "near the bridge",
)
TIMES = (
    "sunny morning",
    "windy afternoon",
    "cloudy day",
    "cold morning",
    "warm evening",
    "summer day",
    "spring morning",
    "autumn day",
    "winter morning",
    "quiet afternoon",
)
SIGHTS = (
    "sea|the wide blue sea|the waves came and went",
    "stars|the stars from the top of the mountain|the sky was full of light",
    "waterfall|the great waterfall|the water sparkled in the sun",
    "sunrise|the sunrise from the highest hill|the whole valley turned to gold",
    "lights|the lights of the big town|a thousand windows glowed",
    "snow|the snow on the high mountain|everything was white and still",
    "rainbow|the end of the rainbow|the air shone in seven colours",
    "flowers|the field of blue flowers|bees hummed over every flower",
)
GIRLS = _words("""
Anna Mia Lily Emma Nora Ella Sara Zoe Ivy Maya Lucy Alice Grace Kate Amy Eva Luna Molly Nina Sofia
Tara Wendy Julia Bea Ada Cora Dora Elsa Gina Holly Iris Jane Kira Lola Marta Nelly Pia Rita Stella
Tess
""")
BOYS = _words("""
Tom Ben Leo Max Sam Jack Noah Liam Eli Adam Paul Peter Nico Felix Oliver Henry George Charlie Jonas
Karl Luke Mark Ned Omar Percy Ralph Simon Tim Victor Will Zack Arthur Boris Cedric Dan Emil Fred
Greg Hans Ian
""")
VISITOR_KINDS = _words("""
dragon robot wizard giant knight pirate lion tiger elephant monkey penguin wolf pig kitten puppy
snail spider butterfly ant crow swan seal panda camel donkey cow hen chick unicorn dinosaur fairy
snake beaver parrot zebra giraffe whale dolphin horse sheep goose bat beetle ghost fish
""")
CHILD_KINDS = (
    ("girl", True),
    ("boy", False),
    ("princess", True),
    ("prince", False),
    ("queen", True),
    ("king", False),
)
TRAITS = (
    "little",
    "kind",
    "brave",
    "shy",
    "clever",
    "curious",
    "happy",
    "quiet",
    "young",
    "friendly",
)
HOMES = (
    "in a small house",
    "in a tiny cottage",
    "near the forest",
    "at the end of the road",
    "in a round tower",
    "by the lake",
    "in a cosy cave",
    "on a quiet street",
)


def visitor(rng: random.Random, *, kind: str | None = None, name: str | None = None) -> Person:
    """A person who is not one of the valley's twenty-four, with a given kind and name where asked
    and the rest drawn.
    """
    female = rng.random() < 0.5
    if kind is None:
        kind, female = (
            (rng.choice(VISITOR_KINDS), female) if rng.random() < 0.7 else rng.choice(CHILD_KINDS)
        )
    else:
        female = dict(CHILD_KINDS).get(kind, female)
    if name in GIRLS or name in BOYS:
        female = name in GIRLS
    pool = GIRLS if female else BOYS
    like = rng.choice(PEOPLE)
    return Person(
        name or rng.choice(pool),
        kind,
        female,
        rng.choice(TRAITS),
        rng.choice(HOMES),
        like.food,
        like.skill,
        like.fear,
        like.name,
        known=False,
    )


def article(words: str) -> str:
    """The words with 'a' or 'an' before them, as they sound."""
    return (
        "an " if words[0] in "aeiou" and not words.startswith(("unicorn", "use")) else "a "
    ) + words


def person_slots(person: Person, prefix: str = "") -> dict[str, str]:
    """The template slots of one person: name, kind, pronouns and facts, each with the prefix that
    tells whose they are.
    """
    he, him, his = ("she", "her", "her") if person.female else ("he", "him", "his")
    skill = SKILLS[person.skill]
    slots = {
        "N": person.name,
        "kind": person.kind,
        "akind": article(person.kind),
        "he": he,
        "him": him,
        "his": his,
        "He": he.title(),
        "His": his.title(),
        "trait": person.trait,
        "atrait": article(person.trait),
        "home": person.home,
        "food": person.food,
        "can": skill.can,
        "did": skill.did,
        "fear": person.fear,
        "friend": person.friend,
    }
    return {prefix + key: value for key, value in slots.items()}


def others(
    rng: random.Random, *taken: Person, skills: tuple[str, ...] | None = None, friend: bool = False
) -> Person:
    """A known person who is none of those taken, with one of the wanted skills; `friend` prefers
    the first one's best friend.
    """
    if friend and taken[0].friend not in {p.name for p in taken}:
        return BY_NAME[taken[0].friend]
    names = {p.name for p in taken} | {p.kind for p in taken}
    return rng.choice(
        [
            p
            for p in PEOPLE
            if p.name not in names and p.kind not in names and (skills is None or p.skill in skills)
        ]
    )
