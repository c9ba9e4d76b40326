"""Packed weights: how they come into memory, and how they are kept on disk for later loads.

`packing` packs weights while a model already answers; `panel_file` reads and writes packed weights
in a file; `cache` is the folder of such files; `writer` writes one when the model is idle.
"""
