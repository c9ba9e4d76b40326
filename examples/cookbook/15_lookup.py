"""Generate faster where a text repeats itself

`speculative="lookup"` proposes tokens that followed the same tokens before. The text is the same,
token for token.
"""

import oxillama

with oxillama.load() as engine:
    prompt = "The fox saw the owl. The fox saw the owl. The fox saw"
    plain = engine.generate(prompt, max_tokens=32, temperature=0)
    fast = engine.generate(prompt, max_tokens=32, temperature=0, speculative="lookup")
    print(plain.tokens == fast.tokens)
