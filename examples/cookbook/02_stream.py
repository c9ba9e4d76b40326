"""Print a text while it is generated

Each piece holds whole characters. Leaving the loop early stops the generation.
"""

import oxillama

with oxillama.load() as engine:
    for piece in engine.stream("Once upon a time", max_tokens=16, temperature=0):
        print(piece.text, end="", flush=True)
    print()
