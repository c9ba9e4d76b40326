"""Compare texts by their embeddings

Vectors have length 1, so their product is the cosine. A model made for embeddings gives better
vectors than this storyteller.
"""

import numpy as np

import oxillama

texts = ["a red fox", "a brown fox", "the cold winter night"]
with oxillama.load() as engine:
    vectors = np.asarray(engine.embed_batch(texts))
    closeness = vectors @ vectors.T
    print(vectors.shape)
    print(closeness[0, 1] > closeness[0, 2])
