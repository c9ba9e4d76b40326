"""Memory of sequences: which page holds which token, and the state of recurrent layers.

pages   KvCachePool, PagedKvCache: reference-counted pages and block tables; KvCache: a copy of them
prefix  PrefixKvCache: a radix tree of pages that prompts have in common
states  SequenceState, SsmStatePool, SequencePool: recurrent state in slots, and its checkpoints
"""
