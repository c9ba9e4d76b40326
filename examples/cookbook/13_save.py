"""Save a generation and continue it elsewhere

A snapshot holds everything: tokens, keys and values, sampler, constraint. The text continues as if
it had not been interrupted.
"""

import oxillama

with oxillama.load() as engine:
    whole = engine.generate("Once upon a time", max_tokens=24, seed=3).text
    first = engine.generate("Once upon a time", max_tokens=12, seed=3).text
    engine.snapshot_to_file("talk.oxisnap")
with oxillama.InferenceEngine.resume_from_file("talk.oxisnap") as engine:
    rest = engine.generate(None, max_tokens=12).text
    print(first + rest == whole)
