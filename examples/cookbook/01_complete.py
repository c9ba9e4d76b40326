"""Complete a prompt

`temperature=0` takes the likeliest token each time, so the text is the same on every machine.
"""

import oxillama

with oxillama.load() as engine:  # oxillama.load("model.gguf") for a model of yours
    done = engine.generate("Once upon a time", max_tokens=16, temperature=0)
    print(done.text)
    print(done.finish_reason, done.usage.prompt_tokens, done.usage.completion_tokens)
