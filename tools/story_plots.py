"""The plots of Willow Valley: every story is an opening, a problem, a helper, a solution and an
ending, with its own questions and answers.

A plot is a list of beats, a beat a tuple of ways to say the same thing; `{N} {he} {him} {his}`
speak of the hero, the prefixes m and f of the helper and the friend, `{thing} {obj} {aobj}` of the
object. `tell` draws one story; the draw is all there is of chance.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from story_world import (
    COLOURS,
    FINDERS,
    PEOPLE,
    PLACES,
    SIGHTS,
    SKILLS,
    THINGS,
    TIMES,
    Person,
    Thing,
    article,
    others,
    person_slots,
)

ONCE = (
    "Once upon a time, there was {atrait} {kind} named {N}. {He} lived {home}.",
    "Once upon a time, {atrait} {kind} named {N} lived {home}.",
    "Once upon a time, there was {akind} named {N}. {He} was very {trait} and lived {home}.",
    "Once upon a time, {N} the {kind} lived {home}. {He} was {atrait} {kind}.",
)
OTHER_OPENINGS = (
    "There was once {atrait} {kind} called {N}, who lived {home}.",
    "In Willow Valley there lived {atrait} {kind} named {N}. {He} lived {home}.",
    "{N} was {atrait} {kind}. {He} lived {home}.",
)
ASK = (
    '"What is wrong?" asked {M}. "{trouble}," said {N}.',
    '"Why are you so sad?" asked {M}. "{trouble}," said {N}.',
    '"Please help me," said {N}. "{trouble}."',
)
AGREE = (
    '"Do not worry," said {M}. "I will help you."',
    '"Of course I will help," said {M}.',
    '"Let us try together," said {M} with a smile.',
)
GIFT = (
    "To say thank you, {N} gave {M} some {mfood}.",
    "{N} shared some {mfood} with {M}, because {M} loved {mfood}.",
    "That evening, {N} brought {M} a plate of {mfood}.",
)
CLOSE = (
    "The end.",
    "And they lived happily in Willow Valley.",
    "That night, {N} slept well and smiled in {his} sleep.",
    "And {N} was happy.",
)


@dataclass(frozen=True, slots=True)
class Plot:
    """One kind of story: what it is about, which skills its helper has, the hero's words for the
    trouble, lesson, beats and questions.
    """

    themes: tuple[str, ...]
    skills: tuple[str, ...] | None
    trouble: str
    lesson: str
    beats: tuple[tuple[str, ...], ...]
    questions: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Story:
    """A told story and the facts that questions about it need."""

    text: str
    plot: str
    hero: Person
    helper: Person
    friend: Person
    thing: Thing
    slots: dict[str, str]
    questions: tuple[tuple[str, str], ...]


OWNED = (
    "{N} had {aobj}. {He} used it {use}.",
    "{He} had {aobj}, and {he} loved it very much. {He} used it {use}.",
    "{His} favourite thing was {aobj}. {He} used it {use}.",
    "{His} grandmother had given {him} {aobj}. {N} used it {use}.",
)
HELPER_Q = (("Who helped {N}?", "{M} the {mkind} helped {N}."),)

PLOTS = {
    "lost": Plot(
        ("finding a lost thing", "something that is lost"),
        FINDERS,
        "I lost my {thing} and I cannot find it",
        "to take good care of {his} things",
        (
            OWNED,
            (
                "One {time}, {N} went for a walk {place}. When {he} came home, the {thing} was "
                "gone.",
                "One {time}, {N} played {place}. Then {he} saw that the {thing} was gone.",
                "One {time}, {N} took the {thing} for a walk {place}. On the way home, {he} lost "
                "it.",
            ),
            (
                "{N} looked everywhere, but {he} could not find the {thing}. {He} was very sad.",
                "{He} looked under the bed and behind the door, but the {thing} was not there. {N} "
                "began to cry.",
                "{N} searched all day long, but there was no {thing}. {He} felt very sad.",
            ),
            (
                '{He} asked {F} the {fkind}. "Have you seen my {thing}?" "No," said {F}, "but ask '
                '{M} the {mkind}. {mHe} can {mcan}."',
                'On the way {he} met {F} the {fkind}. "I have not seen your {thing}," said {F}, '
                '"but {M} the {mkind} can {mcan}. Ask {mhim}!"',
            ),
            ("So {N} went to {M}.", "So {N} ran to {M}, who lived {mhome}."),
            ASK,
            AGREE,
            (
                "They went back together. {M} {mdid}. And there, {spot}, {mhe} found the {obj}!",
                "{M} went with {N} and {mdid}. The {obj} was {spot}!",
            ),
            (
                '"Thank you, {M}!" said {N}, and {he} hugged {mhim}.',
                '{N} jumped for joy. "You found my {thing}! Thank you, {M}!"',
            ),
            GIFT,
            (
                "From that day on, {N} took good care of the {thing}.",
                "From then on, {N} never lost the {thing} again.",
            ),
            CLOSE,
        ),
        (
            ("What did {N} lose?", "{N} lost {his} {obj}."),
            ("Where was the {thing}?", "The {thing} was {spot}."),
            ("Who found the {thing}?", "{M} the {mkind} found the {thing}."),
            ("Why was {N} sad?", "{N} was sad because {he} lost {his} {thing}."),
        ),
    ),
    "stuck": Plot(
        ("getting help", "asking for help"),
        FINDERS,
        "My {thing} is {spot} and I cannot reach it",
        "that it is good to ask for help",
        (
            OWNED,
            (
                "One {time}, {N} took the {thing} outside. A strong wind came and carried it away. "
                "It landed {spot}.",
                "One {time}, {N} tripped over a root and dropped the {thing}. It ended up {spot}.",
            ),
            (
                "{N} tried and tried, but {he} could not reach it.",
                "{N} tried to get it back, but it was no use. {He} could not reach it.",
                '"Oh no!" cried {N}. {He} could not reach the {thing}.',
            ),
            (
                "Just then, {M} the {mkind} came by.",
                "{M} the {mkind} heard {him} and came to see.",
                "Then {M} the {mkind} came along the path.",
            ),
            ASK,
            (
                '"I can {mcan}," said {M}. "Wait here!"',
                '"That is easy for me," said {M}. "I can {mcan}."',
            ),
            (
                "{M} {mdid}. Soon {mhe} came back with the {obj}.",
                "{mHe} {mdid}, and a moment later {mhe} held the {obj}.",
            ),
            (
                '"Here is your {thing}," said {M}. {N} was so happy that {he} danced.',
                '"Thank you, {M}!" said {N}. "You are a good friend."',
            ),
            GIFT,
            (
                "{N} learned that it is good to ask for help.",
                "Since that day, {N} and {M} were the best of friends.",
            ),
            CLOSE,
        ),
        (
            ("Where did the {thing} land?", "The {thing} ended up {spot}."),
            ("What was {spot}?", "The {obj} of {N} was {spot}."),
            ("How did {M} help?", "{M} {mdid} and brought back the {thing}."),
        ),
    ),
    "broken": Plot(
        ("mending a broken thing", "something that breaks"),
        ("mend",),
        "My {thing} is broken",
        "that broken things can be mended",
        (
            OWNED,
            (
                "One {time}, {N} dropped the {thing}, and {broke}.",
                "One {time}, {N} fell down with the {thing}, and {broke}.",
            ),
            (
                '"Oh no!" cried {N}. "My {thing} is broken!" {He} was very sad.',
                "{N} looked at the broken {thing} and began to cry.",
            ),
            (
                '{F} the {fkind} heard {him}. "Take it to {M} the {mkind}," said {F}. "{mHe} can '
                '{mcan}."',
                'Then {F} the {fkind} came by. "{M} the {mkind} can {mcan}," said {F}. "Let us go '
                'to {mhim}."',
            ),
            (
                "{N} carried the {thing} to {M}, who lived {mhome}.",
                "So they went to {M}, who lived {mhome}.",
            ),
            ASK,
            AGREE,
            (
                "{M} {mdid}. When {mhe} was done, the {thing} looked like new.",
                "{mHe} {mdid}, and soon the {obj} was whole again.",
            ),
            (
                '"Thank you, {M}!" said {N} with a big smile.',
                "{N} was so happy that {he} hugged {M}.",
            ),
            GIFT,
            (
                "Now {N} could use the {thing} again {use}.",
                "{N} learned that broken things can be mended with patience.",
            ),
            CLOSE,
        ),
        (
            ("What broke?", "The {obj} of {N} broke."),
            ("Who mended the {thing}?", "{M} the {mkind} mended the {thing}."),
            ("Why was {N} sad?", "{N} was sad because {his} {thing} was broken."),
        ),
    ),
    "share": Plot(
        ("sharing", "being kind", "kindness", "hunger"),
        None,
        "I have nothing to eat",
        "that sharing makes everyone happy",
        (
            ("{N} loved {food} more than anything.", "{His} favourite food was {food}."),
            (
                "One {time}, {N} had a big basket of {food}. {He} wanted to eat it all alone.",
                "One {time}, {N} found a whole basket of {food} {place}. {He} wanted to keep it "
                "all.",
            ),
            (
                "On the way home, {he} met {M} the {mkind}. {M} looked tired and hungry.",
                "Then {M} the {mkind} came by. {mHe} looked very hungry.",
            ),
            (
                '"What is wrong, {M}?" asked {N}. "I have nothing to eat today," said {M}.',
                '"I am so hungry," said {M}. "I have had nothing to eat all day."',
            ),
            (
                "{N} looked at {his} basket. First {he} wanted to hide it. But then {he} felt "
                "sorry for {M}.",
                "{N} thought for a while. {He} had so much, and {M} had nothing.",
            ),
            (
                '"Come and eat with me," said {N}. "There is enough for two."',
                '"Here, take half of my {food}," said {N}.',
            ),
            (
                "They sat down {place} and ate together. The {food} tasted better than ever.",
                "{M} smiled. They sat in the sun and ate all the {food} together.",
            ),
            (
                'The next day, {M} came back with some {mfood}. "Now it is my turn to share," '
                "{mhe} said.",
                'A week later, {M} brought {N} a big plate of {mfood}. "Thank you for sharing with '
                'me," {mhe} said.',
            ),
            (
                "{N} learned that sharing makes everyone happy.",
                "From that day on, {N} always shared {his} food.",
            ),
            CLOSE,
        ),
        (
            ("What did {N} share?", "{N} shared {his} {food} with {M}."),
            ("Who was hungry?", "{M} the {mkind} was hungry."),
            ("What did {M} bring?", "{M} brought some {mfood}."),
        ),
    ),
    "fear": Plot(
        ("being brave", "courage", "fear", "somebody who is afraid"),
        None,
        "I am afraid of {fear}",
        "that being brave is easier with a friend",
        (
            (
                "{N} was afraid of {fear}.",
                "There was only one thing that scared {N}. {He} was afraid of {fear}.",
            ),
            (
                "One {time}, {N} heard that {F} the {fkind} was all alone {place} and needed help.",
                "One {time}, {F} the {fkind} was hurt {place} and called for help.",
            ),
            (
                "{N} wanted to go, but {he} was too afraid.",
                "{N} wanted to help, but {his} legs shook with fear.",
            ),
            ("So {he} went to {M} the {mkind}.", "Then {he} saw {M} the {mkind} at the gate."),
            ASK,
            (
                '"I am afraid sometimes too," said {M}. "I am afraid of {mfear}. Take my {obj} and '
                'hold my hand."',
                '"Everybody is afraid of something," said {M}. "Take this {obj}. I will go with '
                'you."',
            ),
            (
                "{N} held the {thing} tight, and they went together, step by step.",
                "They walked side by side. {N} held the {obj} and took one step after another.",
            ),
            (
                'Soon they found {F}. "You came!" cried {F}. They helped {fhim} and brought {fhim} '
                "home.",
                'They found {F} {place} and took {fhim} home. "You are so brave, {N}!" said {F}.',
            ),
            (
                "{N} was very proud. {He} was not so afraid of {fear} any more.",
                "{N} smiled. {He} had been afraid, but {he} had done it.",
            ),
            (
                "{N} learned that being brave is easier with a friend.",
                '"I can be brave," said {N}, "when a friend is with me."',
            ),
            CLOSE,
        ),
        (
            ("What was {N} afraid of?", "{N} was afraid of {fear}."),
            ("Who needed help?", "{F} the {fkind} needed help."),
            ("What did {M} give {N}?", "{M} gave {N} {aobj}."),
        ),
    ),
    "wish": Plot(
        ("a wish that comes true", "a dream", "a long journey", "an adventure"),
        ("fly", "run", "jump", "carry", "lift", "swim", "climb", "read"),
        "I want to see the {sight}, but the way is too hard for me",
        "that a wish can come true with help",
        (
            (
                "{N} had one big wish. {He} wanted to see {sightlong}.",
                "Every night, {N} dreamed of {sightlong}. {He} wanted to go there one day.",
            ),
            (
                "One {time}, {he} packed some {food} and {his} {obj} and set off.",
                "One {time}, {he} took {his} {obj} and some {food} and started to walk.",
            ),
            (
                "But {obstacle}. {N} could not go on.",
                "Soon there was a problem. {Obstacle}, and {N} did not know what to do.",
            ),
            (
                "{N} sat down and sighed. Then {M} the {mkind} came by.",
                "Just then, {he} met {M} the {mkind}.",
            ),
            ASK,
            (
                '"I know a way," said {M}. "Come with me. I can {mcan}."',
                '"I can {mcan}," said {M}. "We will go together."',
            ),
            (
                "So they went on together. It was a long way, and they shared the {food}.",
                "{M} helped {N} all the way. When they were tired, they ate the {food} and rested.",
            ),
            (
                "At last they were there. {N} saw {sightlong}, and {sightsaw}.",
                "In the evening they came to the right place. There was {sightlong}, and "
                "{sightsaw}.",
            ),
            (
                '"It is more beautiful than in my dreams," said {N}. "Thank you, {M}."',
                '"My wish has come true!" said {N}. {M} smiled.',
            ),
            ("When they came home, {N} told everyone about it.", "{N} never forgot that day."),
            CLOSE,
        ),
        (
            ("What was the wish of {N}?", "{N} wanted to see {sightlong}."),
            ("What did {N} take along?", "{N} took {his} {obj} and some {food}."),
            ("What was the problem?", "{Obstacle}."),
        ),
    ),
    "new": Plot(
        ("making friends", "friendship", "a new friend", "being lonely"),
        None,
        "I am new here and I have no friends",
        "that everyone was new once",
        (
            (
                "{N} was new in Willow Valley and did not know anyone.",
                "{N} had just come to Willow Valley, and {he} had no friends there yet.",
            ),
            (
                "One {time}, {he} sat alone {place} with {his} {obj}.",
                "One {time}, {he} took {his} {obj} and went for a walk {place}, all alone.",
            ),
            (
                "{He} saw the others play, but {he} was too shy to ask.",
                "The others were playing a game, but nobody saw {N}. {He} felt lonely.",
            ),
            (
                "Then {M} the {mkind} looked up and saw {him}.",
                "After a while, {M} the {mkind} came over.",
            ),
            ASK,
            (
                '"I was new once too," said {M}. "That is a nice {thing}. Shall we play?"',
                '"Now you have one," said {M}. "Will you show me your {thing}?"',
            ),
            (
                "{N} showed {M} the {obj}, and they played until the sun went down.",
                "{N} gave {M} the {thing}, and soon both of them were laughing.",
            ),
            (
                "The next day, {M} brought {F} the {fkind}, and they played together.",
                "Then {F} the {fkind} joined them, and the three of them played a new game.",
            ),
            (
                "Now {N} was not lonely any more.",
                '"I am so glad that you came to our valley," said {M}.',
            ),
            (
                "From that day on, {N} always said hello to everyone who was new.",
                "{N} learned that one kind word can start a friendship.",
            ),
            CLOSE,
        ),
        (
            (
                "Why was {N} lonely?",
                "{N} was lonely because {he} was new in the valley and had no friends.",
            ),
            ("Who came to {N}?", "{M} the {mkind} came to {N}."),
            ("What did they play with?", "They played with the {obj}."),
        ),
    ),
    "quarrel": Plot(
        ("taking turns", "a quarrel", "two friends who fight"),
        None,
        "We both want the {thing}",
        "that taking turns is better than fighting",
        (
            (
                "{His} best friend was {F} the {fkind}.",
                "Every day {he} played with {F} the {fkind}.",
            ),
            (
                "One {time}, they found {aobj} {place}.",
                "One {time}, {N} and {F} were {place}. There they saw {aobj} in the grass.",
            ),
            (
                '"It is mine!" said {N}. "No, it is mine!" said {F}. They both pulled at the '
                "{thing}.",
                '"I saw it first!" cried {N}. "No, I saw it first!" cried {F}. They began to '
                "fight.",
            ),
            (
                "They were so angry that they did not speak to each other.",
                "Soon they were both angry and sad.",
            ),
            ("{M} the {mkind} heard the noise and came to see.", "Then {M} the {mkind} came by."),
            (
                '"What is wrong?" asked {M}. "We both want the {thing}," said {N}.',
                '"Why are you fighting?" asked {M}. "Because we both want the {thing}," said {F}.',
            ),
            (
                '"You can take turns," said {M}. "{N} has it today, and {F} has it tomorrow."',
                '"Why not take turns?" said {M}. "Today it is for {F}, and tomorrow it is for '
                '{N}."',
            ),
            (
                '{N} and {F} looked at each other. "I am sorry," said {N}. "I am sorry too," said '
                "{F}.",
                '"That is a good idea," said {N}. "I am sorry that I was angry," said {F}.',
            ),
            (
                "So they took turns with the {obj}, and it was much more fun.",
                "From then on, they took turns, and they were best friends again.",
            ),
            (
                "{N} learned that taking turns is better than fighting.",
                "They thanked {M} and gave {mhim} some {mfood}.",
            ),
            CLOSE,
        ),
        (
            ("What did {N} and {F} find?", "They found {aobj}."),
            ("Why were they angry?", "They were angry because both of them wanted the {thing}."),
            ("What did {M} say?", "{M} said that they could take turns."),
        ),
    ),
    "birthday": Plot(
        ("a birthday surprise", "a birthday", "a party", "a surprise"),
        None,
        "Everybody forgot my birthday",
        "that good friends do not forget",
        (
            (
                "One {time}, {N} woke up very happy. It was {his} birthday!",
                "It was a {time}, and it was the birthday of {N}.",
            ),
            (
                "{He} ran outside, but nobody was there.",
                "{He} waited and waited, but nobody came to see {him}.",
            ),
            (
                '{He} met {F} the {fkind}. "Good morning," said {F}, "I have no time today." And '
                "{fhe} ran away.",
                'Then {F} the {fkind} came by. "I am in a hurry," said {F}, and {fhe} was gone.',
            ),
            (
                '"They have all forgotten my birthday," said {N}. {He} was very sad.',
                "{N} sat down and sighed. {He} thought that nobody remembered {his} birthday.",
            ),
            (
                "In the evening, {M} the {mkind} knocked at the door.",
                "When the sun went down, {M} the {mkind} came to the door.",
            ),
            (
                '"Come with me, {N}," said {M}. "I must show you something." They went to a place '
                "{place}.",
                '"Close your eyes and come with me," said {M}. {mHe} led {N} to a place {place}.',
            ),
            (
                'There were lights in all the trees, and all the friends cried, "Happy birthday, '
                '{N}!"',
                '"Surprise!" cried all the friends. There was a big table with cake and {food}.',
            ),
            (
                '{F} gave {him} {aobj}. "I had to wrap it," said {F}. "You can use it {use}."',
                '{M} and {F} gave {him} {aobj}. "It is from both of us," they said.',
            ),
            (
                "{N} laughed and cried at the same time. {He} was so happy.",
                '"Thank you!" said {N}. "This is the best birthday of my life."',
            ),
            (
                "They ate cake and danced until late in the night.",
                "{N} learned that good friends do not forget.",
            ),
            CLOSE,
        ),
        (
            ("What did {N} get?", "{N} got {aobj}."),
            (
                "Why was {N} sad?",
                "{N} was sad because {he} thought that everyone forgot {his} birthday.",
            ),
            ("Who knocked at the door?", "{M} the {mkind} knocked at the door."),
        ),
    ),
    "baby": Plot(
        ("helping a lost child", "a lost baby animal", "helping others"),
        ("fly", "track", "night", "read", "run"),
        "This little {baby} is lost and I do not know the way",
        "that helping others feels good",
        (
            (
                "One {time}, {N} heard somebody cry {place}.",
                "One {time}, {N} was walking {place} when {he} heard a small voice.",
            ),
            (
                'It was a little {baby}. "I want to go home," cried the {baby}, "but I am lost."',
                'Under a bush sat a little {baby}. "I cannot find my mother," said the {baby}.',
            ),
            (
                '"Do not cry," said {N}. "I will help you." {He} gave the {baby} some {food}.',
                '"I will bring you home," said {N}, and {he} gave the {baby} some {food}.',
            ),
            (
                "But {N} did not know the way. So {he} went to {M} the {mkind}.",
                "They walked for a while, but it got dark. Then they met {M} the {mkind}.",
            ),
            ASK,
            (
                '"I can {mcan}," said {M}. "We will find the way. Take my {obj}!"',
                '"Let me help," said {M}. "I can {mcan}. And here is {aobj} for the little one."',
            ),
            (
                '{M} {mdid}. Then {mhe} pointed to the hill. "There is the house!"',
                "{mHe} {mdid}, and soon they knew the way.",
            ),
            (
                'The mother of the {baby} ran to them. "My little one!" she cried. "Thank you, '
                '{N}! Thank you, {M}!"',
                "At the door stood the mother of the {baby}. She hugged her little one and thanked "
                "{N} and {M}.",
            ),
            ("She gave them hot tea and cake.", "They all ate supper together."),
            (
                "{N} learned that helping others feels good.",
                "On the way home, {N} felt warm and happy.",
            ),
            CLOSE,
        ),
        (
            ("Who was lost?", "A little {baby} was lost."),
            ("What did {N} give the {baby}?", "{N} gave the {baby} some {food}."),
            ("Who helped {N}?", "{M} the {mkind} helped {N}."),
        ),
    ),
    "truth": Plot(
        ("telling the truth", "honesty", "a lie", "saying sorry"),
        ("mend",),
        "I broke the {thing} of {F}",
        "that it is best to tell the truth",
        (
            (
                "{His} best friend was {F} the {fkind}. {F} had {aobj}.",
                "{N} often played with {F} the {fkind}, who had {aobj}.",
            ),
            (
                "One {time}, {N} played with the {thing} while {F} was away. It fell down, and "
                "{broke}.",
                "One {time}, {N} took the {thing} without asking. Then {he} dropped it, and "
                "{broke}.",
            ),
            (
                "{N} was scared. {He} hid the {thing} under the bed.",
                "{N} did not know what to do. {He} hid the broken {thing} behind a tree.",
            ),
            (
                'Soon {F} came home. "Where is my {thing}?" asked {F}. "I do not know," said {N}.',
                '"Have you seen my {thing}?" asked {F}. "No," said {N}, but {his} face was red.',
            ),
            (
                "That night, {N} could not sleep. {He} felt very bad.",
                "But {N} felt bad all day, and {he} could not eat.",
            ),
            (
                'In the morning, {he} went to {F}. "I broke your {thing}," said {N}. "I am so '
                'sorry."',
                'The next day, {he} told {F} the truth. "It was me. I broke your {thing}, and I am '
                'sorry."',
            ),
            (
                '{F} was sad for a moment. Then {fhe} said, "Thank you for telling me the truth."',
                '"I am glad that you told me," said {F}, and {fhe} forgave {him}.',
            ),
            (
                "Together they took the {thing} to {M} the {mkind}, because {mhe} could {mcan}.",
                "They went to {M} the {mkind}, who lived {mhome}.",
            ),
            (
                "{M} {mdid}, and soon the {obj} was as good as new.",
                "{M} helped them, and before long the {thing} was whole again.",
            ),
            (
                "{N} learned that it is best to tell the truth.",
                "From that day on, {N} always told the truth.",
            ),
            CLOSE,
        ),
        (
            ("What did {N} break?", "{N} broke the {obj} of {F}."),
            ("Who mended the {thing}?", "{M} the {mkind} mended the {thing}."),
            ("What did {N} tell {F}?", "{N} told {F} the truth and said sorry."),
        ),
    ),
    "learn": Plot(
        ("not giving up", "learning something new", "a festival"),
        ("sing", "swim", "jump", "climb", "read", "run"),
        "I cannot do it. I try and I fail",
        "never to give up",
        (
            ("{N} wanted to learn {skill}.", "More than anything, {N} wanted to learn {skill}."),
            (
                "One {time}, {he} tried it {place}, but {he} fell down. Everyone laughed.",
                "One {time}, {he} tried it {place}. It went all wrong.",
            ),
            (
                '"I will never learn it," said {N}, and {he} went home with {his} head down.',
                "{N} tried again and again, but it did not work. {He} was very sad.",
            ),
            ("Then {M} the {mkind} came to see {him}.", "{M} the {mkind} saw {him} and came over."),
            ASK,
            (
                '"I will teach you," said {M}. "I can {mcan}, but I had to learn it too."',
                '"Nobody can do it on the first day," said {M}. "I will show you how."',
            ),
            (
                "Every day {N} practised with {M}. After each lesson they ate some {mfood}.",
                "They practised every morning. Some days were hard, but {N} did not give up.",
            ),
            (
                "Then came the day of the big festival. {N} was nervous, but {M} held {his} hand.",
                "After many weeks, the day of the festival came. Everybody in the valley was "
                "there.",
            ),
            (
                "{N} took a deep breath and began. {He} did it! Everyone clapped and cheered.",
                "This time it worked. All the friends clapped, and {F} the {fkind} cheered the "
                "loudest.",
            ),
            (
                "As a prize, {N} got {aobj}. {He} gave {M} a big hug.",
                '"I knew that you could do it," said {M}, and {mhe} gave {N} {aobj}.',
            ),
            ("{N} learned never to give up.", "From that day on, {N} never gave up."),
            CLOSE,
        ),
        (
            ("What did {N} want to learn?", "{N} wanted to learn {skill}."),
            ("Who taught {N}?", "{M} the {mkind} taught {N}."),
            ("What did {N} get?", "{N} got {aobj}."),
        ),
    ),
    "storm": Plot(
        ("working together", "a storm", "a broken house"),
        ("mend", "lift", "carry"),
        "The storm broke my house",
        "that many hands make light work",
        (
            (
                "One {time}, dark clouds came over the valley. A big storm began.",
                "One {time}, the wind grew stronger and stronger, and a storm came.",
            ),
            (
                "{N} hid under the table with {his} {obj}. Outside, the rain fell and the thunder "
                "roared.",
                "{N} held {his} {obj} tight and waited for the storm to end.",
            ),
            (
                "When the storm was over, {N} went outside. The roof of {his} house was gone!",
                "In the morning, the sky was clear again. But a big tree had fallen on {his} "
                "house.",
            ),
            (
                '{N} sat down and cried. "I have no home now."',
                '"Where shall I sleep tonight?" cried {N}.',
            ),
            ("{M} the {mkind} came at once.", "Then {M} the {mkind} came along the road."),
            ASK,
            (
                '"I can {mcan}," said {M}. "And I will call the others."',
                '"We will build it again," said {M}. "Do not cry, {N}."',
            ),
            (
                "{M} called {F} the {fkind} and all the friends. They worked the whole day.",
                "Soon {F} the {fkind} came too, with wood and nails. Everybody worked hard.",
            ),
            (
                "In the evening, the house was even nicer than before.",
                "When the sun went down, the new roof was done.",
            ),
            (
                "{N} cooked {food} for everyone, and they sat by the fire and sang.",
                '"Thank you, my friends," said {N}, and {he} gave them all some {food}.',
            ),
            (
                "{N} learned that many hands make light work.",
                "From that day on, {N} was the first to help when somebody was in trouble.",
            ),
            CLOSE,
        ),
        (
            ("What did the storm do?", "The storm broke the house of {N}."),
            ("What did {N} cook?", "{N} made {food} for everyone."),
            ("Who came to help?", "{M} the {mkind} and {F} the {fkind} came to help."),
        ),
    ),
}
OBSTACLES = {
    "fly": ("a high wall stood in the way", "there were two roads and nobody knew which was right"),
    "climb": ("a high wall stood in the way", "the path up the hill was too steep"),
    "swim": ("the bridge over the river was broken", "a wide lake lay in front of {him}"),
    "jump": ("a deep ditch lay across the road", "the stream had no bridge"),
    "lift": ("a heavy tree lay across the road", "a big stone blocked the path"),
    "carry": ("the bag was much too heavy", "the path up the hill was too steep"),
    "run": ("the way was very long", "{he} was too slow and the sun was already low"),
    "read": ("there were two roads and no sign", "{he} could not read the signs along the road"),
}
BABIES = ("duckling", "kitten", "puppy", "chick", "fawn", "bunny")
SHORT_MIDDLES = {
    "lost": (0, 1, 3, 7, 8),
    "stuck": (0, 1, 3, 6, 7),
    "broken": (0, 1, 3, 7, 8),
    "share": (1, 2, 5, 8),
    "quarrel": (0, 1, 2, 4, 6, 8),
    "new": (0, 3, 6, 8),
}


def tell(
    rng: random.Random,
    *,
    hero: Person | None = None,
    thing: Thing | None = None,
    plot: str | None = None,
    helper: Person | None = None,
    colour: str | None = None,
    short: bool = False,
    opening: tuple[str, ...] | None = None,
) -> Story:
    """One story with the given hero, thing and its colour, plot or helper, and the rest drawn; a
    short one has about six sentences.
    """
    if plot is None:
        fitting = [
            k
            for k, p in PLOTS.items()
            if helper is None or p.skills is None or helper.skill in p.skills
        ]
        plot = rng.choice([k for k in fitting if not short or k in SHORT_MIDDLES] or ["share"])
    if short and plot not in SHORT_MIDDLES:
        plot = "share"
    p = PLOTS[plot]
    if helper is not None and p.skills is not None and helper.skill not in p.skills:
        plot, p = "share", PLOTS["share"]
    hero = hero or rng.choice(PEOPLE)
    helper = helper or others(
        rng, hero, skills=p.skills and tuple(k for k in p.skills if k != hero.skill or k == "mend")
    )
    friend = others(rng, hero, helper, friend=rng.random() < 0.4)
    thing = thing or rng.choice(THINGS)
    slots = _story_slots(rng, hero, helper, friend, thing, colour or rng.choice(COLOURS))
    slots["trouble"] = p.trouble.format_map(slots)
    beats = [p.beats[i] for i in SHORT_MIDDLES[plot]] if short else p.beats
    lines = [rng.choice(opening or (ONCE if rng.random() < 0.75 else OTHER_OPENINGS))] + [
        rng.choice(b) for b in beats
    ]
    paragraphs = (
        [" ".join(lines)]
        if short or rng.random() < 0.35
        else [" ".join(lines[: len(lines) // 2]), " ".join(lines[len(lines) // 2 :])]
    )
    text = "\n\n".join(paragraphs).format_map(slots)
    questions = (
        *p.questions,
        *(() if plot in ("quarrel", "birthday", "new", "share", "baby") else HELPER_Q),
        ("Who is the story about?", "The story is about {N} the {kind}."),
        *(
            ()
            if plot == "share"
            else (("What colour was the {thing}?", "The {thing} was {colour}."),)
        ),
        ("What did {N} learn?", "{N} learned " + p.lesson + "."),
    )
    if short:
        questions = (
            ("Who is the story about?", "The story is about {N} the {kind}."),
            ("What kind of animal is {M}?", "{M} is {amkind}."),
        )
    return Story(
        text,
        plot,
        hero,
        helper,
        friend,
        thing,
        slots,
        tuple((q.format_map(slots), a.format_map(slots)) for q, a in questions),
    )


def _story_slots(
    rng: random.Random, hero: Person, helper: Person, friend: Person, thing: Thing, colour: str
) -> dict[str, str]:
    """Every slot that a plot's beats may name."""
    spots = SKILLS[helper.skill].spots
    sight, sightlong, sightsaw = rng.choice(SIGHTS).split("|")
    helper_slots = {"M" if k == "mN" else k: v for k, v in person_slots(helper, "m").items()}
    friend_slots = {"F" if k == "fN" else k: v for k, v in person_slots(friend, "f").items()}
    wanted = {
        "sing": "to sing",
        "swim": "to swim",
        "jump": "to jump over the stream",
        "climb": "to climb",
        "read": "to read",
        "run": "to run fast",
    }
    slots = (
        person_slots(hero)
        | helper_slots
        | friend_slots
        | {
            "amkind": article(helper.kind),
            "thing": thing.name,
            "colour": colour,
            "obj": f"{colour} {thing.name}",
            "aobj": article(f"{colour} {thing.name}"),
            "use": thing.use,
            "broke": thing.broke,
            "place": rng.choice(PLACES),
            "time": rng.choice(TIMES),
            "spot": rng.choice(spots),
            "sight": sight,
            "sightlong": sightlong,
            "sightsaw": sightsaw,
            "baby": rng.choice(BABIES),
            "skill": wanted.get(helper.skill, "to sing"),
        }
    )
    obstacle = rng.choice(OBSTACLES.get(helper.skill, OBSTACLES["run"])).format_map(slots)
    return slots | {"obstacle": obstacle, "Obstacle": obstacle[0].upper() + obstacle[1:]}
