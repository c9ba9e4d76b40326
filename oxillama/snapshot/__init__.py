"""What an engine holds as bytes and back: sessions, stored prefixes, speculating sessions.

`container` is the file format, sections under hashes; `pages` moves pages of keys and values
between memory and files; `session` saves and restores a session exactly; `prefixes` does so with
the prefix cache, signed with the user's `key`; `speculation` with a session and its draft.
"""
