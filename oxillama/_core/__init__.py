"""The compiled layer: every loop over tiles, tokens, pages, heads, workers, vocabularies and
grammar positions.

  a step     threads, batch, step (an op is checked), tape (ops run), linear and elementwise, attention, store, experts, recurrent: the ops;
             adapters (low-rank factors in memory), lowrank (their products over the rows that use them)
  memory     panels (packed weights), matmul (the product over them; unpacked: where not all are), pager (weights from a file,
             while a step runs), pool (pages of keys and values)
  csrc       kernels (the lanes), vectors (the float tables), codecs (rows of a file's blocks), sample (the sampler's loops)
  a draw     candidates, history (what a request has seen), stage (what one is), edits and cuts, stages (their table), chain, sampler;
             xorshift (the random stream)
  grammar    networks, emission, dstates, pushdown: one machine in four layers; cover, cursor, trie (masks); sequences (interning);
             automata (regular languages as tables)
  text       bpe
  C programs capi: the table of include/oxillama.h
"""
