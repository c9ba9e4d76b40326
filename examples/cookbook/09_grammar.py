"""Follow a grammar

Grammars are written in GBNF, as in llama.cpp.
"""

import oxillama

MOVES = r"""
root ::= move (", " move){2}
move ::= ("go" | "run") " " ("north" | "south")
"""
with oxillama.load() as engine:
    print(engine.generate("Moves: ", grammar=MOVES, temperature=0, max_tokens=60).text)
