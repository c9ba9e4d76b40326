"""Continue one text in several ways

A fork shares the keys and values of its session, so nothing is evaluated twice.
"""

import oxillama

with oxillama.load() as engine:
    session = engine.session()
    engine.prefill("The fox went into the forest and", session=session)
    for more in (" found", " met"):
        branch = session.fork()
        print(more + engine.generate(more, session=branch, max_tokens=8, temperature=0).text)
        branch.close()
