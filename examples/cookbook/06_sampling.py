"""Choose how tokens are drawn

Pass a `SamplerConfig`, or its fields as arguments (llama.cpp's names work too). The same seed gives
the same text.
"""

import oxillama

with oxillama.load() as engine:
    sampler = oxillama.SamplerConfig(temperature=1.0, top_k=20, top_p=0.9, seed=1)
    first = engine.generate("Once upon a time", sampler=sampler, max_tokens=12)
    again = engine.generate(
        "Once upon a time", temperature=1.0, top_k=20, top_p=0.9, seed=1, max_tokens=12
    )
    print(first.text)
    print(first.tokens == again.tokens)
