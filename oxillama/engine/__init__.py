"""Requests over time: sessions, pages, the scheduler and the step loop. Integers in, integers out; no tensor is known here.

  pages      KvCachePool, PagedKvCache: which page holds which token
  views      KvCache, BatchedKvView, KvSlot: what tests, exports and attention look at
  states     SequencePool, SsmStatePool: slots of recurrent state
  prefix     PrefixKvCache: a radix tree of pages that prompts have in common
  session    Session: tokens, pages, sampler, grammar state, text: fork and truncate
  request    Request, Stream, Completion, Piece, Usage: what a caller holds
  stops      StopText: stop strings, never shown, not even their beginning
  scheduler  who runs in the next step, and for how many rows
  engine     EngineCore: schedule -> step -> sample -> postprocess, in one thread
  embedding  PoolingMode and exact pooling over chunks
  metrics    EngineMetrics, MetricsSnapshot
"""
