"""Packed weights: how they come into memory, and how they are stored on disk for later loads.

`packing` packs weights while a model already answers. `panel_file` reads and writes a file of
packed weights, `identity` says which model file they were made from, `cache` is the folder of such
files. `writer` writes one and `verifier` compares one with its hashes, both in the background, and
`idle` tells them when the model is idle.

`offload` is the policy for how much memory weights may take. `pager` reads the other weights from
the model's file while a step runs, and `pressure` reports when the system is short of memory.
"""
