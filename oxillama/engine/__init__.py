"""Requests over time: sessions, pages, the scheduler and the step loop. Integers in, integers out;
no tensor is known here.

  pages      KvCachePool, PagedKvCache: which page holds which token
  views      KvCache, BatchedKvView, KvSlot: what tests, exports and attention look at
  states     SequenceState, SsmStatePool, SequencePool: recurrent state in slots, and its checkpoints
  prefix     PrefixKvCache: a radix tree of pages that prompts have in common
  config     EngineConfig: how a model is loaded and served
  session    Session: tokens, pages, sampler, grammar state, text: fork and truncate
  request    Request, Stream, Completion, Piece, Usage: what a caller holds
  stops      StopText: stop strings, never shown, not even their beginning
  allocator  PageAllocator: divides pages among requests, stored prefixes and idle sessions
  tracker    RequestTracker: requests in flight, how one begins and every end it may have
  generation Options, Vocabulary: from text and options to a request
  beam       BeamSearchConfig, BeamHypothesis: the likeliest continuations, found by sequences side by side
  siblings   several completions of one prompt
  groups     SequenceGroups: requests of more than one sequence
  arguments  what callers pass by keyword: types, other tools' names, numbers of any kind
  workers    threads beside the loop, for functions that callers bring
  deadlines  when the time of requests is over
  scheduler  who runs in the next step, and for how many rows
  engine     EngineCore: schedule -> step -> sample -> postprocess, in one thread
  speculation  what the loop knows of speculation; `oxillama.speculative` implements it
  workers      threads beside the loop
  rewind       what can go back to an earlier position
  batching     from a plan to the arrays of a step
  images       rows of images among the tokens of a session
  output       OutputProcessor: deals out the rows of a finished step
  postprocess  what follows from a row of logits
  asynchronous AsyncEngine: the same for asyncio
  raw        RawLoop and diagnose: the program without the engine
  embedding  PoolingMode and exact pooling over chunks
  reranking  how relevant documents are to a query
  rows       logits or hidden rows of every token of a text
  default_session  DefaultSession: the conversation that an engine itself holds
  metrics    EngineMetrics, MetricsSnapshot
"""
