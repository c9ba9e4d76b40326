"""Several answers to one prompt

The prompt is evaluated once. Each answer has its own seed, derived from the one you give.
"""

import oxillama

with oxillama.load() as engine:
    for done in engine.generate("Once upon a time", n=3, seed=1, max_tokens=10):
        print(done.text)
