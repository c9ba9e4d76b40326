"""Requests over time: sessions, pages, the scheduler and the step loop. Integers in, integers out;
no tensor is known here.

  engine       EngineCore: what any thread may ask of an engine
  loop         StepLoop: plan -> step -> draw -> text, in one thread
  scheduler    who runs in the next step, and for how many rows
  batcher      Batcher: the input of a step, made of a plan
  output       OutputProcessor: from a row of logits to a token and its text; StopText
  tracker      RequestTracker: requests in flight, how one begins and every end it may have
  allocator    PageAllocator: divides pages among requests, stored prefixes and idle sessions
  memory       pages, stored prefixes, recurrent state
  session      Session: tokens, pages, sampler, grammar state, text; fork and truncate
  request      Request and its kinds: what a caller holds
  stream       Stream: the pieces of a request as they come
  speculation  what the loop knows of speculation; `oxillama.speculative` implements it
  workers      Workers run callers' functions, Deadlines end requests; both in their own threads
  metrics      EngineMetrics, MetricsSnapshot

  config       EngineConfig: how a model is loaded and served
  generation   SharedVocabulary, make_request: from text and options to a request
  siblings     several completions of one prompt
  beam         BeamSearchConfig, BeamHypothesis: the likeliest continuations
  embedding    logits of all tokens, pooled vectors, relevance of documents
  raw          RawLoop and diagnose: the program without the engine
"""
