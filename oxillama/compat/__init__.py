"""Interfaces of other libraries on this engine, for existing programs.

`llama_cpp` is that of llama-cpp-python: `objects` are the classes beside its `Llama`, `handlers`
those of image encoders, `arguments` says what arguments mean here, `loading` those that a `Llama`
is made with, `constants` are its numbers, `facts` what it says of itself and the machine, `types`
its names of dictionaries, `shapes` writes results in its form.
"""
