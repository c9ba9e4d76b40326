"""Choose among answers, or match a regular expression

`choices` and `regex` constrain the text as `json_schema` does.
"""

import oxillama

with oxillama.load() as engine:
    print(engine.generate("Is the fox red? ", choices=["yes", "no"], temperature=0).text)
    print(engine.generate("The year was ", regex="(19|20)[0-9]{2}", temperature=0).text)
