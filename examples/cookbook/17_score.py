"""Score texts

The mean log-probability per token says which text a model finds more natural.
"""

import oxillama


def score(engine: oxillama.InferenceEngine, text: str) -> float:
    done = engine.generate(text, max_tokens=0, prompt_logprobs=0)
    values = [report[0] for report in done.prompt_logprobs]
    return float(sum(values) / len(values))


with oxillama.load() as engine:
    print(score(engine, "Once upon a time") > score(engine, "time a upon Once"))
