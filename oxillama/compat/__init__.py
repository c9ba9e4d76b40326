"""Interfaces of other libraries over this engine, for programs that were written for them.

`llama_cpp` is that of llama-cpp-python; `shapes` writes results in the form that it has.
"""
