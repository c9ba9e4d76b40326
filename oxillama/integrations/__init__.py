"""oxillama in other frameworks, one package and one extra each.

`ray`: batch inference with Ray Data, serving with Ray Serve, sessions that move between machines.

fingerprint  what an engine's prefix cache holds, in a few kilobytes
affinity     which of several engines a prompt goes to
"""
