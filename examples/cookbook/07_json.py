"""Get JSON that fits a class

Pass a dataclass, a pydantic model or a JSON schema. Only matching JSON can be generated.
"""

import json
from dataclasses import dataclass
from typing import Literal

import oxillama


@dataclass
class Animal:
    kind: Literal["fox", "owl", "bear"]
    friends: Literal[0, 1, 2]
    shy: bool


with oxillama.load() as engine:
    done = engine.generate("An animal: ", json_schema=Animal, temperature=0, max_tokens=60)
    print(Animal(**json.loads(done.text)))
