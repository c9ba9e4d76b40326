"""The compiled layer: every loop over tiles, tokens, pages, heads, workers, vocabularies and
grammar positions.

  a step     threads, batch, step (checks an op), tape (runs them); the ops are in linear,
             elementwise, attention, store, experts, recurrent; adapters (low-rank factors in
             memory), lowrank (their products over the rows that use them)
  memory     panels (packed weights), matmul (the product over them; unpacked: over rows that are
             not packed), pager (weights from a file while a step runs), pool (pages of keys and
             values), filemap (mapped files)
  csrc       kernels (the lanes), vectors (the float tables), codecs (rows of a file's blocks),
             sample (the sampler's loops)
  sampling   candidates, history (the tokens of a request), stage (the interface of one), edits and
             cuts, stages (their table), chain, sampler; xorshift (the random stream)
  grammar    networks, emission, dstates, pushdown: one automaton in four layers; cover, cursor,
             trie (masks); sequences (interning); finishing (which rules can match something);
             automata (regular languages as tables); schemas, cases, expansion (the inner loops of
             the JSON schema compiler)
  candidates lookup (an index of texts, the costs of steps by rows)
  text       bpe
  C programs capi: the table of include/oxillama.h
"""
