"""Chat

The file's own chat template formats the conversation. Append the reply to the list, then the next
question.
"""

import oxillama

messages = [{"role": "user", "content": "Tell me of a fox."}]
with oxillama.load() as engine:
    reply = engine.chat(messages, max_tokens=24, temperature=0)
    print(reply.content)
    messages += [reply.message(), {"role": "user", "content": "And then?"}]
    print(engine.chat(messages, max_tokens=24, temperature=0).content)
