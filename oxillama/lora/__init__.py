"""Low-rank adapters (Hu et al. 2021, LoRA): read from GGUF files or PEFT folders, checked against a
loaded model, stacked, and merged into a file.

    file or folder --read_lora--> LoraFile --fit--> Lora (packed factors) --LoraStack--> Adapters of
    a session

`file` reads and checks GGUF files and `peft` folders, `fit` packs for a model's tape, `stack` holds
the loaded adapters and the active ones, `merge` writes files.

An adapter changes a matrix W of the model to W + scale alpha / rank B A. W itself never changes:
rows of requests with the adapter add B (A x) to their own products (`_core/lowrank.pyx`).
"""
