"""Reuse a long prompt

The common beginning of prompts is evaluated once and cached. `cached_tokens` says how many tokens
were reused.
"""

import oxillama

story = "Once upon a time there was a fox who lived in a forest with an owl and a bear. "
with oxillama.load() as engine:
    for question in ("The fox said", "The owl said"):
        used = engine.generate(story + question, max_tokens=4).usage
        print(used.prompt_tokens, used.cached_tokens > 0)
