"""oxillama inside other people's frameworks, one package each, each with an extra of its own.

`ray`: batch inference with Ray Data, serving with Ray Serve, sessions that move between machines.
"""
