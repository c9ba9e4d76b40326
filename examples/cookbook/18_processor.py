"""Change the logits yourself

A processor is a function over the tokens so far and the logits of the next one. It is slow: it runs
in Python for every token.
"""

import numpy as np

import oxillama

with oxillama.load() as engine:
    ids = {engine.tokenize(word, add_special=False)[0] for word in (" the", " The", "The")}

    def without_the(tokens: np.ndarray, logits: np.ndarray) -> np.ndarray:
        logits[list(ids)] = -np.inf
        return logits

    done = engine.generate(
        "Once upon a time", max_tokens=24, temperature=0, processors=[without_the]
    )
    print(ids.isdisjoint(done.tokens))
