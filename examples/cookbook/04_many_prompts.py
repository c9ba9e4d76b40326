"""Many prompts at once

The prompts of a list share their steps, which is much faster than one after the other. Each text is
the same as if its prompt had run alone.
"""

import oxillama

prompts = ["The fox", "The owl", "The bear"]
with oxillama.load() as engine:
    together = engine.generate(prompts, max_tokens=10, temperature=0)
    for prompt, done in zip(prompts, together):
        print(prompt + done.text)
    alone = [engine.generate(prompt, max_tokens=10, temperature=0).text for prompt in prompts]
    print(alone == [done.text for done in together])
