"""The encoder of EXAONE 4.5 (LG AI Research 2026, by its code in transformers, `models/exaone4_5`):
that of Qwen2.5-VL with fewer heads of keys than of queries.
"""

from oxillama.model.encoders.qwen import within_windows
from oxillama.model.image_builder import ImageBuilder, encoder


@encoder("exaone4_5")
def exaone45(b: ImageBuilder) -> None:
    """Attention within windows in all but every `n_wa_pattern`-th layer, in none without that
    key.
    """
    within_windows(b, b.keys.integer("n_wa_pattern", default=0, minimum=0, maximum=b.n_layers))
