"""Saves sessions and stored prefixes as bytes, and restores them.

`container` is the file format, sections covered by hashes. `pages` moves pages of keys and values
between memory and files. `session` saves and restores a session exactly, with its `media`.
`prefixes` does the same with the prefix cache, signed with the user's `key`. Speculating sessions
use the same container.
"""
