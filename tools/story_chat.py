"""Conversations in Willow Valley: greetings, requests for stories, questions about a story or the
valley, system messages.

`conversation` draws one list of messages (role, content) such as the embedded model's chat template
renders; the narrator answers only from the valley's facts, from the story in the conversation or
from what the user said, and says so when it does not know.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from story_plots import PLOTS, Story, tell
from story_world import (
    BOYS,
    BY_NAME,
    CHILD_KINDS,
    COLOURS,
    GIRLS,
    NARRATOR,
    PEOPLE,
    PLACES,
    SKILLS,
    THINGS,
    VISITOR_KINDS,
    Person,
    article,
    person_slots,
    visitor,
)

Turn = tuple[str, str]
OFFERS = (
    "Would you like to hear a story?",
    "Shall I tell you a story?",
    "What story would you like?",
)
GREETINGS = (
    "hi",
    "hello",
    "hey",
    "hi there",
    "hello there",
    "good morning",
    "good evening",
    "good day",
    "greetings",
    "hello, how are you?",
    "hi, how are you?",
    "hey there!",
    "how are you?",
    "how are you today?",
)
GREETED = (
    "Hello! I am {narrator}, the storyteller of Willow Valley. {offer}",
    "Hello! It is nice to meet you. {offer}",
    "Hi there! I am {narrator}. {offer}",
)
FINE = (
    "I am well, thank you! The sun is shining in Willow Valley. {offer}",
    "I am very well, thank you. {offer}",
)
SMALL_TALK: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    (
        (
            "What is your name?",
            "Who are you?",
            "What are you called?",
            "Tell me your name.",
            "Do you have a name?",
        ),
        (
            "My name is {narrator}. I am the storyteller of Willow Valley.",
            "I am {narrator}, the storyteller of Willow Valley.",
        ),
    ),
    (
        (
            "What can you do?",
            "How can you help me?",
            "What do you do?",
            "Help",
            "What can I ask you?",
        ),
        (
            "I can tell you stories about Willow Valley and answer questions about the animals who "
            "live there.",
        ),
    ),
    (
        (
            "Thank you!",
            "Thanks.",
            "Thank you very much.",
            "Thanks a lot!",
            "That was nice.",
            "I liked that.",
            "Great story!",
            "What a nice story!",
            "Cool!",
            "Good job.",
        ),
        (
            "You are welcome!",
            "You are welcome! I am glad that you liked it.",
            "I am happy that you liked it.",
        ),
    ),
    (
        (
            "Goodbye!",
            "Bye.",
            "Good night.",
            "See you later!",
            "See you tomorrow.",
            "I have to go now.",
        ),
        (
            "Goodbye! Come back to Willow Valley soon.",
            "Goodbye! Sleep well and dream of Willow Valley.",
        ),
    ),
    (
        (
            "What is Willow Valley?",
            "Where do you live?",
            "Tell me about Willow Valley.",
            "Where is Willow Valley?",
        ),
        (
            "Willow Valley is a green valley with a river, a forest and a hill. Many animals live "
            "there and help each other.",
        ),
    ),
    (
        (
            "Who lives in Willow Valley?",
            "Which animals live in the valley?",
            "Who are the animals of Willow Valley?",
            "Tell me some names from the valley.",
        ),
        (
            "Many animals live in Willow Valley: Fern the fox, Otto the otter, Hazel the squirrel, "
            "Bruno the bear, Olive the owl and many more.",
        ),
    ),
    (
        (
            "Are you a robot?",
            "Are you human?",
            "Are you real?",
            "Are you a computer?",
            "Are you an AI?",
        ),
        ("I am a very small language model. I tell stories about Willow Valley.",),
    ),
    (
        ("How old are you?", "When were you born?"),
        ("I do not know how old I am. I am as old as the stories of Willow Valley.",),
    ),
    (
        ("Tell me a joke.", "Say something funny.", "Make me laugh."),
        (
            "Why did Finn the frog take the bus? Because his legs were tired of jumping!",
            "What does Bruno the bear put on his bread? Honey, and then more honey!",
        ),
    ),
    (
        ("I am sad.", "I feel sad.", "I had a bad day.", "I am lonely.", "I am tired."),
        (
            "I am sorry to hear that. Maybe a story will make you feel better. {offer}",
            "I am sorry. In Willow Valley, a friend and a cup of tea always help. {offer}",
        ),
    ),
    (
        ("I am happy!", "I am so happy today.", "I had a good day."),
        ("That is wonderful! I am happy too. {offer}",),
    ),
    (
        ("Who is your favourite?", "Who do you like best?", "What is your favourite animal?"),
        ("I like all of them, but Lena the llama and Oscar the ox are very dear to me.",),
    ),
    (
        ("What happened next?", "Go on.", "And then?", "What happens then?", "Continue."),
        ("That was the end of the story. {offer}",),
    ),
    (
        ("No, thank you.", "No.", "No thanks.", "Not now.", "Maybe later."),
        ("All right. I am here when you want a story.", "That is fine. Come back when you like."),
    ),
    (
        ("Ok.", "Okay.", "I see.", "Good.", "Oh.", "All right.", "Nice."),
        ("{offer}", "Good! {offer}"),
    ),
    (
        ("Who is the best cook?", "Who is the strongest?", "Who is the strongest animal?"),
        ("Oscar the ox and Bruno the bear are the strongest. They can lift heavy things.",),
    ),
)
STRANGE = (
    "capital",
    "president",
    "weather tomorrow",
    "price of gold",
    "latest news",
    "theory of numbers",
    "football match",
    "computer program",
    "internet",
    "phone",
    "moon landing",
    "stock market",
    "world war",
    "python code",
    "electricity",
    "planet",
    "history of Rome",
    "chemistry",
    "French word for house",
    "car engine",
    "airplane",
    "movie",
    "population of China",
    "best song",
    "biggest city",
    "speed of light",
    "recipe",
    "poem about love",
    "essay",
    "email",
)
STRANGE_ASK = (
    "What is the {x}?",
    "Who invented the {x}?",
    "Tell me about the {x}.",
    "Explain the {x} to me.",
    "What is the {x} of {y}?",
    "How does the {x} work?",
    "Write a {x} for me.",
    "Do you know the {x} of {y}?",
    "Can you help me with my {x}?",
    "What is {n} plus {m}?",
    "How much is {n} times {m}?",
    "Who is {Y}?",
    "Where is {Y}?",
    "What does {y} mean?",
    "Translate {y} into French.",
    "When did {Y} begin?",
    "How many {y} are there?",
    "What is {y}?",
)
UNKNOWN = (
    "I do not know that. I only know the stories of Willow Valley.",
    "I am sorry, I do not know. I only know Willow Valley and the animals who live there.",
    "I do not know about that. {offer}",
)
SYSTEMS = (
    "You are a helpful assistant.",
    "You are a storyteller.",
    "You are a friendly storyteller for children.",
    "You tell stories about Willow Valley.",
    "You are {narrator}, the storyteller of Willow Valley.",
    "Be kind and helpful.",
    "Answer the questions of the user.",
)
ASK_STORY = (
    "Tell me a story about {x}.",
    "Tell me a story about {x}",
    "tell me a story about {x}",
    "Can you tell me a story about {x}?",
    "Please tell me a story about {x}.",
    "I want a story about {x}.",
    "Write a story about {x}.",
    "Do you know a story about {x}?",
    "I would like to hear a story about {x}.",
    "a story about {x} please",
    "How about a story about {x}?",
    "Tell me about an adventure of {x}.",
    "Write a short tale about {x}.",
)
ASK_ANY = (
    "Tell me a story.",
    "Tell me a story",
    "tell me a story please",
    "Can you tell me a story?",
    "I want to hear a story.",
    "Please tell me a bedtime story.",
    "Yes, please!",
    "Yes, tell me a story.",
    "A story, please.",
    "Another story, please.",
    "Another one!",
    "Tell me another story.",
    "Surprise me.",
    "Tell me something.",
    "Once more!",
    "I cannot sleep. Tell me a story.",
)
ASK_SHORT = (
    "Tell me a short story.",
    "Tell me a very short story.",
    "A short story, please.",
    "Can you tell me a short story?",
    "Write a few sentences for me.",
)
LEADS = ("", "", "", "Of course! ", "Here is a story for you. ", "Gladly! ")


def casual(rng: random.Random, text: str) -> str:
    """The text as a hurried person types it: now and then without capitals or without the last full
    stop.
    """
    draw = rng.random()
    if draw < 0.2:
        return text.lower().rstrip(".?!")
    if draw < 0.3:
        return text.rstrip(".!?")
    return text.lower() if draw < 0.36 else text


def odd_word(rng: random.Random) -> str:
    """A made-up word, so that copying a name is learned for any spelling."""
    return "".join(
        rng.choice("bcdfghjklmnprstvwz") + rng.choice("aeiou")
        for _ in range(rng.choice((1, 2, 2, 3)))
    ) + rng.choice(("", "n", "r", "s", "l", "k"))


class Conversation:
    """One conversation under way: its messages, the narrator's name, the story last told and the
    person last spoken of.
    """

    def __init__(self, rng: random.Random) -> None:
        """Starts an empty conversation that draws from the given generator."""
        self.rng = rng
        self.turns: list[Turn] = []
        self.narrator = NARRATOR
        self.short = False
        self.goodbye = ""
        self.star: Person | None = None
        self.story: Story | None = None
        self.user_name: str | None = None

    def say(self, question: str, *answers: str) -> None:
        """Adds one exchange; the answer is drawn from those given, and the system's closing words
        follow it.
        """
        answer = self.rng.choice(answers).format(
            narrator=self.narrator, offer=self.rng.choice(OFFERS)
        )
        self.turns += [("user", casual(self.rng, question)), ("assistant", answer + self.goodbye)]


def add_system(c: Conversation) -> None:
    """A system message: an ordinary one, or one that names the narrator, asks for short stories,
    sets the hero or the last words.
    """
    rng, kind = c.rng, c.rng.random()
    if kind < 0.45:
        text = rng.choice(SYSTEMS).format(narrator=c.narrator)
    elif kind < 0.65:
        c.narrator = rng.choice(GIRLS + BOYS) if rng.random() < 0.7 else odd_word(rng).title()
        text = rng.choice(
            (
                "Your name is {n}.",
                "You are {n}, a storyteller.",
                "You are {n}.",
                "You are a storyteller called {n}.",
                "Your name is {n}. You are a helpful storyteller.",
            )
        ).format(n=c.narrator)
    elif kind < 0.75:
        c.short = True
        text = rng.choice(
            (
                "Tell only short stories.",
                "Keep your stories short.",
                "Answer in a few sentences.",
                "Be brief.",
            )
        )
    elif kind < 0.88:
        c.star = rng.choice(PEOPLE)
        text = rng.choice(
            (
                "All your stories are about {a}.",
                "You love stories about {a}.",
                "Tell only stories about {a}.",
            )
        ).format(
            a=f"{c.star.name} the {c.star.kind}" if rng.random() < 0.5 else article(c.star.kind)
        )
    else:
        words = rng.choice(
            ("Good night!", "Sleep well!", "Be kind to each other!", "Have a nice day!")
        )
        c.goodbye = " " + words
        text = rng.choice(
            (
                'Always end with "{w}"',
                'End every answer with "{w}"',
                'Close each answer with the words "{w}"',
            )
        ).format(w=words)
    c.turns.insert(0, ("system", text))


def greet(c: Conversation) -> None:
    """A greeting and its answer."""
    words = c.rng.choice(GREETINGS)
    c.say(
        words[0].upper() + words[1:] + ("" if words[-1] in "?!" else c.rng.choice(("!", ".", ""))),
        *(FINE if "how are" in words else GREETED),
    )


def small_talk(c: Conversation) -> None:
    """One exchange that needs no facts."""
    questions, answers = c.rng.choice(SMALL_TALK)
    c.say(c.rng.choice(questions), *answers)


def user_name(c: Conversation) -> None:
    """The user gives a name, and may ask for it later."""
    rng = c.rng
    if c.user_name is None:
        c.user_name = rng.choice(GIRLS + BOYS) if rng.random() < 0.5 else odd_word(rng).title()
        name = c.user_name
        question = rng.choice(
            (
                f"My name is {name}.",
                f"I am {name}.",
                f"Hello, my name is {name}!",
                f"Hi, I am {name}.",
                f"You can call me {name}.",
            )
        )
        answer = rng.choice((f"Nice to meet you, {name}! ", f"Hello, {name}! "))
        c.turns += [("user", question), ("assistant", answer + rng.choice(OFFERS) + c.goodbye)]
    else:
        c.say(
            rng.choice(
                (
                    "What is my name?",
                    "Do you know my name?",
                    "Who am I?",
                    "Do you remember my name?",
                )
            ),
            f"Your name is {c.user_name}.",
        )


def strange(c: Conversation) -> None:
    """A question from outside the valley, which the narrator does not pretend to know."""
    rng = c.rng
    y = rng.choice(STRANGE) if rng.random() < 0.5 else odd_word(rng)
    question = rng.choice(STRANGE_ASK).format(
        x=rng.choice(STRANGE) if rng.random() < 0.7 else odd_word(rng),
        y=y,
        Y=odd_word(rng).title(),
        n=rng.randrange(100),
        m=rng.randrange(100),
    )
    c.say(question, *UNKNOWN)


def about(p: Person) -> str:
    """Three sentences on one of the valley's people."""
    friend = BY_NAME[p.friend]
    sentences = "{N} is {atrait} {kind}. {He} lives {home} and loves {food}. {His} best friend is "
    words = sentences.format_map(person_slots(p))
    return f"{words}{friend.name} the {friend.kind}."


def valley_fact(c: Conversation) -> None:
    """One to three questions on one of the valley's people, the later ones with pronouns."""
    rng = c.rng
    p = rng.choice(PEOPLE)
    s = person_slots(p) | {"fkind": BY_NAME[p.friend].kind}
    other = rng.choice([q for q in PEOPLE if q is not p])
    s |= {"ofood": other.food, "okind": other.kind, "oakind": article(other.kind)}
    facts = [
        ("Where does {X} live?", "{N} lives {home}."),
        ("What does {X} like to eat?", "{N} loves {food}."),
        ("What is the favourite food of {X}?", "The favourite food of {N} is {food}."),
        ("What does {X} like?", "{N} loves {food}."),
        ("What can {X} do?", "{N} can {can}."),
        ("What is {X} afraid of?", "{N} is afraid of {fear}."),
        ("Who is the best friend of {X}?", "The best friend of {N} is {friend} the {fkind}."),
        ("Where is the home of {X}?", "{N} lives {home}."),
        ("Does {X} like {food}?", "Yes, {N} loves {food}."),
        (
            "Does {X} like {ofood}?",
            ("No, {N} likes {food} best." if other.food != p.food else "Yes, {N} loves {food}."),
        ),
    ]
    first = rng.random()
    if first < 0.3:
        opening = (
            rng.choice(
                (
                    "Who is {N}?",
                    "Tell me about {N}.",
                    "Who is {N} the {kind}?",
                    "What do you know about {N}?",
                    "Do you know {N}?",
                    "Tell me about the {kind}.",
                )
            ).format_map(s),
            about(p),
        )
    elif first < 0.42:
        opening = rng.choice(
            (
                ("What animal is {N}?", "{N} is {akind}."),
                ("What kind of animal is {N}?", "{N} is {akind}."),
                ("What is the name of the {kind}?", "The {kind} is called {N}."),
                ("What is the {kind} called?", "The {kind} is called {N}."),
                ("Is {N} {akind}?", "Yes, {N} is {akind}."),
                ("Is {N} {oakind}?", "No, {N} is {akind}."),
                ("Who lives {home}?", "{N} the {kind} lives {home}."),
                ("Who likes {food}?", "{N} the {kind} loves {food}."),
            )
        )
    else:
        question, answer = rng.choice(facts)
        opening = (
            question.replace("{X}", rng.choice(("{N}", "{N} the {kind}", "the {kind}"))),
            answer,
        )
    c.say(opening[0].format_map(s), opening[1].format_map(s))
    for question, answer in rng.sample(facts, rng.choice((0, 0, 1, 2))):
        asked = (
            question.replace("of {X}", "of {him}" if "afraid" not in question else "of")
            .replace("{X}", "{he}")
            .format_map(s)
        )
        c.say(
            asked if "best friend" not in asked else f"Who is {s['his']} best friend?",
            answer.format_map(s),
        )


def skill_fact(c: Conversation) -> None:
    """Who in the valley can do what."""
    skill = c.rng.choice(sorted(SKILLS))
    able = [p for p in PEOPLE if p.skill == skill]
    names = " and ".join(f"{p.name} the {p.kind}" for p in able[:2])
    c.say(
        c.rng.choice(
            (
                f"Who can {SKILLS[skill].can}?",
                f"Which animal can {SKILLS[skill].can}?",
                f"Who in the valley can {SKILLS[skill].can}?",
            )
        ),
        f"{names} can {SKILLS[skill].can}.",
    )


def user_tale(c: Conversation) -> None:
    """The user tells two sentences and asks about them: the answer stands in the question."""
    rng = c.rng
    p, q = visitor(rng), visitor(rng)
    while q.name == p.name:
        q = visitor(rng)
    thing, place, colour = (
        rng.choice(THINGS).name,
        rng.choice(PLACES),
        rng.choice(("red", "blue", "green", "yellow")),
    )
    text = rng.choice(
        (
            f"{p.name} lost a {colour} {thing} {place}. {q.name} found it.",
            f"{p.name} has a {colour} {thing}. {q.name} wants it.",
            f"{p.name} gave {q.name} a {colour} {thing} {place}.",
        )
    )
    asks = [
        ("Which colour is the " + thing + "?", f"The {thing} is {colour}."),
        (f"What colour was the {thing}?", f"The {thing} was {colour}."),
    ]
    if "lost" in text:
        asks += [
            ("Who found it?", f"{q.name} found it."),
            (f"Who lost the {thing}?", f"{p.name} lost the {thing}."),
            (f"Where was the {thing}?", f"The {thing} was {place}."),
            (f"What did {p.name} lose?", f"{p.name} lost a {colour} {thing}."),
        ]
    elif "gave" in text:
        asks += [
            (f"Who has the {thing} now?", f"{q.name} has the {thing} now."),
            (f"What did {p.name} give {q.name}?", f"{p.name} gave {q.name} a {colour} {thing}."),
        ]
    else:
        asks += [
            (f"Who has the {thing}?", f"{p.name} has the {thing}."),
            (f"Who wants the {thing}?", f"{q.name} wants the {thing}."),
        ]
    question, answer = rng.choice(asks)
    c.turns += [("user", f"{text} {question}"), ("assistant", answer + c.goodbye)]


def ask_story(c: Conversation) -> None:
    """A request for a story, open or with a hero, a thing, a helper, a place, a theme or a name,
    and the story that keeps to it.
    """
    rng = c.rng
    wish: dict = {"short": c.short or rng.random() < 0.12}
    request, kind = (
        rng.choice(ASK_SHORT if wish["short"] and not c.short else ASK_ANY),
        rng.random(),
    )
    if c.star is not None:
        wish["hero"] = c.star
    elif kind < 0.75:
        words = _wished(rng, wish, kind)
        request = rng.choice(ASK_STORY).format(x=words)
        if wish["short"] and not c.short:
            request = request.replace("a story", "a short story").replace(
                "an adventure of", "a short story about"
            )
    if rng.random() < 0.08:
        request = (
            rng.choice(
                ("Hi! ", "Hello! ", "Hello, ", "Good evening! ", "Thank you! ", "I like you. ")
            )
            + request
        )
    story = tell(rng, **wish)
    c.story = story
    c.turns += [
        ("user", casual(rng, request)),
        ("assistant", rng.choice(LEADS) + story.text + c.goodbye),
    ]


def _wished(rng: random.Random, wish: dict, kind: float) -> str:
    """Draws what the story shall be about into `wish` and returns it in words."""
    hero, words = rng.choice(PEOPLE), ""
    if kind < 0.45:
        draw = rng.random()
        if draw < 0.45:
            words = rng.choice(
                (article(hero.kind), f"{hero.name} the {hero.kind}", hero.name, f"the {hero.kind}")
            )
        elif draw < 0.8:
            hero = visitor(
                rng,
                kind=rng.choice(VISITOR_KINDS)
                if rng.random() < 0.8
                else rng.choice(CHILD_KINDS)[0],
            )
            words = article(hero.kind)
        else:
            name = rng.choice(GIRLS + BOYS)
            hero = visitor(
                rng, kind=rng.choice([p.kind for p in PEOPLE] + list(VISITOR_KINDS)), name=name
            )
            words = rng.choice(
                (
                    f"{article(hero.kind)} named {name}",
                    f"{name} the {hero.kind}",
                    f"{article(hero.kind)} called {name}",
                )
            )
        wish["hero"] = hero
    if kind < 0.25:
        return words + " and " + _wished_thing(rng, wish)
    if words:
        if rng.random() < 0.2:
            theme = rng.choice(sorted(PLOTS))
            wish["plot"] = theme
            return f"{words} and {rng.choice(PLOTS[theme].themes)}"
        return words
    if kind < 0.53:
        return _wished_thing(rng, wish)
    if kind < 0.63:
        wish["plot"] = rng.choice(sorted(PLOTS))
        return rng.choice(PLOTS[wish["plot"]].themes)
    wish["hero"] = hero
    wish["helper"] = rng.choice([p for p in PEOPLE if p is not hero])
    return rng.choice(
        (
            f"{hero.name} and {wish['helper'].name}",
            f"{article(hero.kind)} and {article(wish['helper'].kind)}",
        )
    )


def _wished_thing(rng: random.Random, wish: dict) -> str:
    """Draws the thing that the story shall be about, at times with its colour, and returns it in
    words.
    """
    wish["thing"] = rng.choice(THINGS)
    if rng.random() < 0.7:
        return article(wish["thing"].name)
    wish["colour"] = rng.choice(COLOURS)
    return article(f"{wish['colour']} {wish['thing'].name}")


def nobody(c: Conversation) -> None:
    """A question about somebody whom the valley does not have."""
    kind = c.rng.choice(VISITOR_KINDS)
    if c.rng.random() < 0.5:
        name = (
            odd_word(c.rng).title()
            if c.rng.random() < 0.6
            else c.rng.choice([n for n in GIRLS + BOYS if n not in BY_NAME])
        )
        c.turns += [
            (
                "user",
                c.rng.choice(
                    (
                        "Who is {n}?",
                        "Where does {n} live?",
                        "Tell me about {n}.",
                        "What does {n} like to eat?",
                        "Do you know {n}?",
                    )
                ).format(n=name),
            ),
            (
                "assistant",
                f"I do not know {name}. Nobody in Willow Valley has that name." + c.goodbye,
            ),
        ]
    else:
        question = c.rng.choice(
            (
                "Where does the {k} live?",
                "Who is the {k}?",
                "What is the name of the {k}?",
                "What does the {k} like to eat?",
                "Is there {a} in the valley?",
                "Does {a} live in Willow Valley?",
            )
        )
        c.say(question.format(k=kind, a=article(kind)), f"There is no {kind} in Willow Valley.")


def repeat(c: Conversation) -> None:
    """The user wants somebody greeted or words said again."""
    rng = c.rng
    name = rng.choice(GIRLS + BOYS) if rng.random() < 0.4 else odd_word(rng).title()
    words = " ".join(
        rng.choice(
            (odd_word(rng), rng.choice(THINGS).name, rng.choice(COLOURS), rng.choice(VISITOR_KINDS))
        )
        for _ in range(rng.choice((1, 2, 3)))
    )
    question, answer = rng.choice(
        (
            (f"Say hello to {name}.", f"Hello, {name}!"),
            (f"Say good night to {name}.", f"Good night, {name}!"),
            (f"Repeat after me: {words}", words),
            (f"Say: {words}", words),
            (f'Say "{words}".', words),
        )
    )
    c.turns += [("user", question), ("assistant", answer + c.goodbye)]


def ask_name(c: Conversation) -> None:
    """Who the narrator is, which a system message may have changed."""
    questions, answers = SMALL_TALK[0]
    c.say(c.rng.choice(questions), *answers)


def ask_about_story(c: Conversation) -> None:
    """A question about the story just told, or a first story where there is none."""
    if c.story is None:
        return ask_story(c)
    question, answer = c.rng.choice(c.story.questions)
    if c.rng.random() < 0.1:
        hero, theme = c.story.hero, PLOTS[c.story.plot].themes[0]
        question, answer = (
            "What is the story about?",
            f"The story is about {hero.name} the {hero.kind} and {theme}.",
        )
    c.say(question, answer)
    return None


MOVES: tuple[tuple[Callable[[Conversation], object], float], ...] = (
    (greet, 0.8),
    (small_talk, 1.4),
    (user_name, 1.5),
    (strange, 1.0),
    (valley_fact, 4.0),
    (skill_fact, 0.4),
    (nobody, 0.6),
    (user_tale, 1.6),
    (repeat, 0.3),
    (ask_story, 2.2),
    (ask_about_story, 3.0),
)


DRILLS: tuple[tuple[Callable[[Conversation], object], float], ...] = (
    (user_name, 1.5),
    (user_tale, 3.0),
    (repeat, 1.5),
    (ask_name, 0.7),
    (ask_story, 0.5),
    (ask_about_story, 2.5),
)


def drill(rng: random.Random) -> list[Turn]:
    """A conversation whose answers stand earlier in it: names, things and colours to be found
    again.
    """
    c = Conversation(rng)
    if rng.random() < 0.4:
        add_system(c)
    c.short = c.short or rng.random() < 0.7
    moves, weights = zip(*DRILLS, strict=True)
    for move in rng.choices(moves, weights, k=rng.choice((2, 3, 4, 5))):
        move(c)
    return c.turns


def conversation(rng: random.Random) -> list[Turn]:
    """One whole conversation of one to six exchanges."""
    c = Conversation(rng)
    if rng.random() < 0.3:
        add_system(c)
    if rng.random() < 0.2:
        greet(c)
    moves, weights = zip(*MOVES, strict=True)
    for move in rng.choices(moves, weights, k=rng.choice((1, 2, 2, 3, 4, 5))):
        move(c)
    return c.turns
