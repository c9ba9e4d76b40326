"""Save a generation and go on elsewhere

A snapshot holds everything: tokens, memory, sampler, constraint. The text goes on as if nothing had
happened.
"""

import oxillama

with oxillama.load() as engine:
    whole = engine.generate("Once upon a time", max_tokens=24, seed=3).text
    first = engine.generate("Once upon a time", max_tokens=12, seed=3).text
    engine.snapshot_to_file("talk.oxisnap")
with oxillama.InferenceEngine.resume_from_file("talk.oxisnap") as engine:
    rest = engine.generate(None, max_tokens=12).text
    print(first + rest == whole)
