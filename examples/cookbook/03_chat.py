"""Chat

The file's own chat template writes the conversation. The reply goes into the list, and the next
question after it.
"""

import oxillama

messages = [{"role": "user", "content": "Tell me of a fox."}]
with oxillama.load() as engine:
    reply = engine.chat(messages, max_tokens=24, temperature=0)
    print(reply.text)
    messages += [
        {"role": "assistant", "content": reply.text},
        {"role": "user", "content": "And then?"},
    ]
    print(engine.chat(messages, max_tokens=24, temperature=0).content)
