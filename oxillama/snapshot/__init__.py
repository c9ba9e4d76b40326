"""What an engine holds as bytes and back: sessions and stored prefixes.

`container` is the file format, sections under hashes; `pages` moves pages of keys and values
between memory and files; `session` saves and restores a session exactly, with its `images`;
`prefixes` does so with the prefix cache, signed with the user's `key`. Speculating sessions use the
same container.
"""
