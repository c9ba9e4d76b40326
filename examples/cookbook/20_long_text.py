"""Write more than the context holds

With `context_shift` the older half of the text is dropped when the context is full. The first
`keep` tokens stay.
"""

import oxillama

with oxillama.load(n_ctx=64) as engine:
    done = engine.generate(
        "Once upon a time", max_tokens=150, ignore_eos=True, context_shift=True, keep=5, seed=1
    )
    print(done.usage.completion_tokens, done.usage.context_shifts > 1)
