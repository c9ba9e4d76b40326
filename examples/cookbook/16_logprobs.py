"""See how likely each token was

`raw` is the natural logarithm of a token's probability before any sampler; `raw_ids` are the
likeliest tokens.
"""

import oxillama

with oxillama.load() as engine:
    done = engine.generate("Once upon a", max_tokens=3, temperature=0, logprobs=2)
    for report in done.logprobs:
        text = engine.detokenize([report.token])
        others = [engine.detokenize([token]) for token in report.raw_ids]
        print(repr(text), f"{2.718281828**report.raw:.2f}", others)
