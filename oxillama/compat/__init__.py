"""Interfaces of other libraries on this engine, for existing programs.

`llama_cpp` is that of llama-cpp-python, `constants` its numbers; `shapes` writes results in its
form.
"""
