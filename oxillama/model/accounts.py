"""Checks that every hyper-parameter of a file is accounted for: read, neutral, inert, or refused by
name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from oxillama.errors import ModelError

# Keys that do not affect the computation, each with the reason.
INERT = {
    "classifier.output_labels": "names what the scores of a classifier are of, where there is one",
    "vocab_size": "the rows of token_embd.weight are the vocabulary",
    "rope.scaling.finetuned": "says how the model was made",
    "tensor_data_layout": "names the order of rows that this architecture's rotation means",
}
# Keys with the value that changes nothing; any other value must be read or refused.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "attention.causal": (True,),
    "attention.sliding_window": (0,),
    "attention.max_alibi_bias": (0.0,),
    "attention.clamp_kqv": (0.0,),
    "attention.q_lora_rank": (0,),
    "attn_logit_softcapping": (0.0,),
    "final_logit_softcapping": (0.0,),
    "logit_scale": (1.0,),
    "residual_scale": (1.0,),
    "embedding_scale": (1.0,),
    # one expert is the dense network itself: dense Jamba and Hunyuan say so of themselves
    "expert_count": (0, 1),
    "expert_used_count": (0, 1),
    "expert_shared_count": (0,),
    "expert_weights_scale": (1.0,),
    "expert_weights_norm": (False,),
    "expert_group_count": (0, 1),
    "expert_group_used_count": (0, 1),
    "leading_dense_block_count": (0,),
    "nextn_predict_layers": (0,),
    "rope.scaling.type": ("none",),
    "rope.scaling.factor": (1.0, 0.0),
    "rope.scaling.attn_factor": (1.0,),
    "rope.scale_linear": (1.0, 0.0),
}


def check_keys(metadata: Mapping[str, Any], arch: str, read: set[str]) -> None:
    """Raise ModelError for the first key under the architecture's prefix that nothing read and that
    would change what the model computes.
    """
    prefix = arch + "."
    for name, value in metadata.items():
        key = name[len(prefix) :]
        if not name.startswith(prefix) or name in read or key in INERT:
            continue
        neutral = NEUTRAL.get(key, ())
        if not isinstance(value, (list, tuple, np.ndarray)) and value in neutral:
            continue
        shown = (
            f"an array of {len(value)}"
            if hasattr(value, "__len__") and not isinstance(value, str)
            else f"{value!r:.60}"
        )
        wanted = f"no such key{''.join(f' or {each!r}' for each in neutral)}"
        raise ModelError(f"{name}: found {shown}, which {arch} does not use, wanted {wanted}")
