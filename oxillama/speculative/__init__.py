"""Speculative decoding: candidates for the next tokens are evaluated in the step of the last token,
and those that the model agrees with are accepted. The text does not depend on it; see
docs/speculative.md.

  types          the interface between drafters and loop: Draft, DraftRequest, Drafter, Candidates
  request        the candidates of one request
  planner        the candidates of an engine's requests: calls drafters, measures steps
  threads        drafters of callers run in worker threads
  costs          what steps cost by rows, and what speculation has cost so far
  acceptance     how likely candidates are to be accepted
  registry       values of `speculative=`; the drafters that requests share
  lookup         candidates that followed the same tokens before
  grammar        candidates that a grammar forces
  draft_model    candidates from a second model
  draft_session  what that keeps of a session, and its candidates while they are drawn
  mtp            candidates from the model's own layers that predict further tokens
  dflash         candidates from a DFlash model, a block of them in one step
  assistant      candidates from a Gemma 4 assistant, which reads the target's pages
  choices        the first of several drafters, or the likelier of two
  shortlist      the part of a large vocabulary that drafts draw from
  vocabularies   whether a draft's tokens can represent a target's, and how
  background     a draft model that drafts while the target verifies
  drafts         draft models: opened, chosen from a folder, or made from the target
  config         SpeculativeConfig, AsyncSpecConfig
  engine         SpeculativeEngine: a target and a draft as one engine
  decoder        SpeculativeDecoder: the same with background drafting; CancellationToken
  snapshot       a speculating session as bytes

`engine` and `decoder` belong to the public API, above `oxillama.api`; the other modules are above
`oxillama.engine` and below the API.
"""

from __future__ import annotations

import importlib
from typing import Any

_HOMES = {
    "AsyncSpecConfig": "config",
    "CancellationToken": "decoder",
    "Candidates": "types",
    "Draft": "types",
    "DraftRequest": "types",
    "Drafter": "types",
    "LookupDrafter": "lookup",
    "SpecSnapshot": "snapshot",
    "SpeculativeConfig": "config",
    "SpeculativeDecoder": "decoder",
    "SpeculativeEngine": "engine",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'oxillama.speculative' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"oxillama.speculative.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
