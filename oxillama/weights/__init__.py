"""Packed weights: how they come into memory, and how they are kept on disk for later loads.

`packing` packs weights while a model already answers; `panel_file` reads and writes packed weights
in a file; `identity` says which model file they were made from; `cache` is the folder of such
files; `writer` writes one, `verifier` compares one with its hashes, both in the background; `idle`
shows them when the model is at rest.

`offload` says how much memory weights may take; `pager` keeps the rest in the model's file and
brings it while a step runs; `pressure` tells when the system is short of memory.
"""
