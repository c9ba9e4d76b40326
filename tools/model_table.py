"""Writes docs/models.md: every architecture that is registered, what is known under its name, and
what its layers keep, by the tape of a tiny model of it that the tests hold.

`python tools/model_table.py` after an architecture was added; a test compares.
"""

import inspect
import re
import textwrap
from pathlib import Path

from oxillama.convert import convertible
from oxillama.model.builder import recorders

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "models.md"
TAPES = ROOT / "tests" / "model" / "golden"
HEAD = """# Architectures

A GGUF file names its architecture in `general.architecture`. The architectures below run; any
other is refused with an error that names it. `oxillama convert` writes files from the Hugging
Face classes in the last column. `tools/model_table.py` generates this page.

"What it has" is read from the recorded tape: *experts* are chosen for each token; *latent*
attention keeps one row per token for all heads; *blocks* of tokens become one key each in some
layers; rows see *chosen keys* alone in long texts; *windows* limit how far back some layers see;
some layers keep a *state* of fixed size in place of past tokens; *adapters* of the file are
switched within a text; a *source* is read by an encoder before the decoder writes; an *encoder*
alone gives embeddings and no next token. An architecture with none of these is a dense decoder.
*Wrappers* are classes that hold a language model of one of several architectures beside an encoder
of images or audio; the table is followed by their names.

| architecture | models | what it has | converted from |
| --- | --- | --- | --- |
"""
TAIL = """
## LongRoPE: short or long factors

Phi-3, Phi-4 mini, MiniCPM and Phi-3.5-MoE have two sets of frequency factors (Ding et al. 2024).
The context size that the model is loaded with (`context_size`) decides which set is used, once
and for all sequences: the short factors up to the file's `rope.scaling.original_context_length`,
the long factors beyond it. To use the long factors, load the model with a longer context.

llama.cpp decides in the same way. transformers decides by the length so far and switches in the
middle of a generation, while the keys already stored keep the old rotation; its logits therefore
depend on how the prompt was split. Deciding per request, by its prompt and `max_tokens`, would
give one prompt different tokens under different limits, and cached prefixes could not be shared.

The class of Phi-3.5-MoE in transformers 5.23 takes the short factors for every length; that of
earlier releases took the long ones beyond the original context, as here. Cosines and sines are
multiplied by the file's `rope.scaling.attn_factor`; llama.cpp's converter writes a formula there,
not the number of the model's configuration ([convert.md](convert.md)).

## YaRN of gpt-oss

YaRN interpolates between two bounds in the list of frequencies. The published code of gpt-oss lets
these bounds lie between two frequencies (`truncate: false`). llama.cpp rounds both to whole ones.
Its files do not say which is meant, and such files are evaluated with rounded bounds here too.
Files that `oxillama convert` makes have a key for it and are evaluated as published.

## Experts in quantised files

A router chooses the experts of a token. Rounding weights, or activations to 8 bits, changes some of
these choices. Routers are F32 in files, and the rows that they read are not rounded. The effect was
measured in tiny random models at Q8_0 (nine architectures with experts and attention alone, four
texts of 1 to 96 tokens each). Up to the first token that got other experts than at F32, logits are
within 0.05 of the largest. From there they differ by up to 0.49. With the same weights and
activations in float32 it is 0.48, and in llama.cpp 0.47.

## Sparse attention

These models have an indexer, which chooses the keys that a row sees by queries and keys of its own.
A row that has no more keys than would be chosen sees all of them.

| models | chosen for a row | seen in any case |
| --- | --- | --- |
| DeepSeek V3.2, GLM 5, Hy4, dots3-note | `attention.indexer.top_k` keys | |
| GLM 5.3 Flash | as many, in pools of `attention.indexer.kpool` | keys behind the last whole pool |
| Qwen 4 experimental | as many, in blocks of `attention.compress_ratios` | keys behind the \
last whole block |
| MiniMax-M3 | for each KV head, as many blocks of `attention.indexer.block_size` | the last \
`attention.indexer.local_blocks` of them |
| DeepSeek V4 | as many keys made of 4 tokens each | its window |

- **Equal scores.** The earlier block is chosen; transformers and llama.cpp choose any of them. A
  choice that is nearly even can fall the other way under rounding (quantised weights, keys as
  halves), as that of experts can.
- **Memory.** Keys of an indexer, and what keys of blocks are made of, are float32 whatever
  `kv_type` is: 512 bytes a token and layer where they have 128 floats.
- **Shared choices.** A layer without an indexer of its own takes the choice of the last one that
  has one: `attention.indexer.types` says which do; without it, all do, and in GLM 5 those with the
  tensors.
- **Blocks of unknown size.** llama.cpp's converter writes 0 for the size of Qwen 4's blocks if
  transformers 5.24 saved the folder. Such a layer sees all keys, and a sequence may have `top_k`
  tokens at most. (llama.cpp lets rows see all keys, however long a sequence is.)

Tiny random models of all these, in F32, give the logits of transformers 5.23 for texts of 1 to 300
tokens, of which 24 were chosen, to within 2e-5 of the largest logit, dots3-note to 7e-5 (DeepSeek
V4 those of transformers 5.24 to 7e-6). Hy4 was compared with transformers' code changed in one
respect: it rotates the halves of a head's floats, llama.cpp and SGLang adjacent pairs, as oxillama
does.

## Layers that predict further tokens

Files may have layers behind the others that predict the token after the next one
(`nextn_predict_layers`; DeepSeek-AI 2024, DeepSeek-V3, section 2.2). The first of them drafts for
its model in `bailingmoe3`, `cohere2moe`, `deepseek2`, `deepseek32`, `deepseek4`, `glm-dsa`,
`glm4moe`, `hy_v3`, `mimo2`, `nemotron_h_moe`, `qwen3next`, `qwen35`, `qwen35moe` and `step35`;
elsewhere such layers are ignored.

Of several such layers (Step 3.5 and MiMo-V2 have three), llama.cpp draws each candidate with the
next one, and as many candidates as there are layers; oxillama, like vLLM, draws all with the first.
What they predict in tiny random models is what llama.cpp predicts, to within 2e-5 of the largest
logit.

## Adapters switched within a text

A file of Granite Switch holds low-rank adapters for several tasks. Each has a token of its own:
from that token on, rows are changed by the adapter; rows before it are those of the model without.
The token itself has the embedding of another one, which the file names.

The chat template of such a file writes the token where its variable `adapter_name` says so, which
is `engine.chat(messages, template={"adapter_name": "answerability"})` in Python and
`chat_template_kwargs` of the server. A client's message cannot switch, as the tokens are control
tokens ([chat.md](chat.md#control-tokens)).

Two versions of IBM's code differ where a text has several such tokens. The key
`adapters.router_gain` says which one a file was made for.

| published code | key | in force |
| --- | --- | --- |
| MultiSwitch (granite-switch 0.1.1) | no | the adapter of the last token; a file may have a token \
that switches back to none |
| SingleSwitch (0.0.8 to 0.1.0; the previews of May 2026) | yes | the mean of the adapters' \
numbers, to nearest even: right if all tokens are the same, else often one that none of them names |

- **State.** Which adapter is in force is kept for each token, beside its keys: 4 or 8 bytes.
  Sessions, forks, stored prefixes, snapshots and speculation need nothing else.
- **Cost.** A row reads the factors of its own adapter alone, and none where no adapter is in force.
- **Adapters of callers** (`lora=`) are added to the file's ([lora.md](lora.md)); the file's own
  factors cannot be changed by one.
- **Formats.** `oxillama quantize` leaves the factors as they are, as llama.cpp does.
- **Refused**: a first matrix of `lora_b` that is not zeros (it belongs to no adapter), and ranks
  that are not a multiple of 16. `oxillama convert` refuses folders with experts, with Shadow
  Residual adapters (`dual_stream`), or whose control tokens are hidden (before 0.0.8).

Tiny random models that granite-switch 0.1.0 and 0.1.1 saved give their logits to within 3e-6 of the
largest.

## Encoder-decoders

T5, Flan-T5, mT5, umT5 and MADLAD-400 answer a text, they do not go on with it:

```python
import oxillama

engine = oxillama.load("model.gguf")
print(engine.generate("translate English to German: The house is wonderful.", temperature=0).text)
```

- **A prompt is a source.** The encoder reads its tokens, in one step, behind which the decoder
  begins with the file's `decoder_start_token_id`. A session holds both, and its context is twice
  the file's `context_length`, which is that of either. Usage counts the start token to the prompt.
- **A session has one source.** Another prompt for it is an error; `Session.extend`, and `prefill`
  and `forward_one` with token ids, append tokens of the answer.
- **Penalties, grammars and stops** look at the answer alone. Beams, several completions, log
  probabilities, lookups, adapters and snapshots work as with any model. A prefix is shared if the
  whole source is the same.
- **Memory.** A layer of the decoder keeps the source's keys and its own in the same pages; the
  encoder keeps none.
- **Refused**: logits of the prompt (`logits`, `prompt_logprobs`, `score`, perplexity), embeddings
  (`t5encoder` gives them), `context_shift`, `truncate_prompt`, draft models, `save_prefixes`,
  `bench`, `imatrix`.

Logits are scaled where the output is the token table, as in T5 of 2019. Tiny random models give
those of transformers 5.23 for sources of 1 to 200 tokens to within 3e-6 of the largest, and its
greedy and beam texts.

## What is not here

Files of `qwen4exp` with a table of hashed tokens in several layers are refused by name, and so are
models that fill in masks step by step. Drafts of the architectures `eagle3`, `dflash` and
`gemma4-assistant` are loaded with their model
([speculative.md](speculative.md#eagle-3)).

## Differences from llama.cpp

Tiny random models of the architectures here give the logits of llama.cpp (version 0.3.36 of its
Python package) to within 2e-5 of the largest, except for those below. There oxillama follows the
published code of the model. Numbers are the size of the difference, where it is known.

| architecture | what llama.cpp does differently |
| --- | --- |
| all with GELU | computes it through a table of half floats: 1e-4 to 1e-3 |
| Falcon, GPT-NeoX, MPT, BERT, Jina, ModernBERT | uses GELU with tanh instead of the exact one |
| with latent attention | uses the file's epsilon for norms of latents (published \
code: 1e-6); it matters where the file has 1e-5 (GLM 4.7 Flash, Moonlight) |
| `afmoe` | leaves the weights of experts as they are if the file has no `expert_weights_norm` |
| `chameleon` | with `swin_norm`, the feed-forward network does not read the residual |
| `gemma3n` | divides the spread of a sparse gate by one number less |
| `gemma4` | caps logits at 30 if the file has no `final_logit_softcapping` |
| `graniteswitch` | knows the mean alone, and rounds it away from zero: another adapter where a \
text has tokens of several; refuses a token that switches back |
| `grovemoe` | the small experts read the result of the large ones |
| `dots3note` | its indexer rotates halves instead of adjacent pairs |
| `hunyuan_vl` | the fourth position of a text token is 0 |
| `jina-bert-v2` | takes the wrong half for the gate, in files of the code variant \
whose gate and up are one matrix |
| `minicpm` | divides instead of multiplying if the file has no `logit_scale` |
| `nemotron_h`, `nemotron_h_moe` | has no shortest time step (published code: 0.001): 1e-3 |
| `phi3` | ignores the window |
| `phimoe` | weighs experts by a softmax instead of SparseMixer |
| `qwen35`, `qwen35moe`, `qwen3next`, `qwen4exp` | uses the file's epsilon for the lengths of \
queries and keys of the delta rule (published code: 1e-6); with 1e-3 in the file, 4e-4 |
| `qwen2vl` | does not read the epsilon of the norms: 1e-3 |
| `t5` | does not scale logits where the output is the token table: they are larger by the root of \
the embedding's width |
| `rwkv7`, `arwkv7` | is wrong for heads narrower than a vector register; those \
of real models are wide enough |

## Sources
"""
# What people know files of an architecture as.
NAMES = {
    "afmoe": "Trinity",
    "apertus": "Apertus",
    "arcee": "AFM 4.5B",
    "arctic": "Snowflake Arctic",
    "arwkv7": "ARWKV",
    "baichuan": "Baichuan",
    "bailingmoe": "Ling, Ring",
    "bailingmoe2": "Ling 2, Ring 2",
    "bailingmoe3": "Ling 3",
    "bert": "BERT, RoBERTa, XLM-RoBERTa, DistilBERT, BGE, E5, MiniLM",
    "bitnet": "BitNet b1.58",
    "bloom": "BLOOM",
    "chameleon": "text part of Chameleon",
    "chatglm": "ChatGLM 3, GLM-4",
    "codeshell": "CodeShell",
    "cogvlm": "text part of CogVLM",
    "cohere2": "Command R7B, Command A",
    "cohere2moe": "Cohere 2 with experts",
    "command-r": "Command R, Aya",
    "dbrx": "DBRX",
    "deci": "Llama Nemotron Super and Ultra, DeciLM",
    "deepseek": "DeepSeekMoE 16B",
    "deepseek2": "DeepSeek V2, V3, R1, Kimi K2, GLM-4.7 Flash, Youtu, Mistral Large 3",
    "deepseek2-ocr": "text part of DeepSeek-OCR",
    "deepseek32": "DeepSeek V3.2",
    "deepseek4": "text part of DeepSeek V4",
    "dots1": "dots.llm1",
    "dots3note": "text part of dots3-note",
    "ernie4_5": "ERNIE 4.5",
    "ernie4_5-moe": "ERNIE 4.5 with experts",
    "eurobert": "EuroBERT",
    "exaone": "EXAONE 3",
    "exaone-moe": "K-EXAONE",
    "exaone4": "EXAONE 4",
    "falcon": "Falcon",
    "falcon-h1": "Falcon-H1",
    "gemma": "Gemma",
    "gemma-embedding": "EmbeddingGemma",
    "gemma2": "Gemma 2",
    "gemma3": "Gemma 3",
    "gemma3n": "Gemma 3n",
    "gemma4": "Gemma 4",
    "glm-dsa": "GLM 5",
    "glm4": "GLM-4-0414",
    "glm5-next": "GLM 5.3 Flash",
    "glm4moe": "GLM 4.5, 4.6, 4.7, Solar Open",
    "gpt-oss": "gpt-oss",
    "gpt2": "GPT-2",
    "gptneox": "GPT-NeoX, Pythia, Dolly",
    "granite": "Granite 3",
    "granite_swa": "Granite with windows",
    "granitehybrid": "Granite 4, Bamba",
    "granitemoe": "Granite 3 with experts",
    "graniteswitch": "Granite Switch 4.1",
    "grok": "Grok 1, Grok 2",
    "grovemoe": "GroveMoE",
    "hrm_text": "HRM-Text",
    "hunyuan-dense": "Hunyuan",
    "hunyuan-moe": "Hunyuan-Large, Hunyuan-A13B",
    "hunyuan_vl": "text part of HunyuanOCR",
    "hy_v3": "Hy3",
    "hy_v4": "Hy4",
    "internlm2": "InternLM 2",
    "jais": "Jais",
    "jais2": "Jais 2",
    "jamba": "Jamba",
    "jina-bert-v2": "Jina embeddings 2",
    "jina-bert-v3": "Jina embeddings 3",
    "kimi-k3": "Kimi K3",
    "kimi-linear": "Kimi Linear",
    "laguna": "Laguna",
    "lfm2": "LFM 2",
    "lfm2moe": "LFM 2 with experts",
    "llama": "Llama, Mistral, Mixtral, SmolLM, TinyLlama, CodeLlama, InternLM 3, Yi",
    "llama-embed": "Llama embedders of NVIDIA",
    "llama4": "Llama 4",
    "maincoder": "Maincoder",
    "mamba": "Mamba, Falcon Mamba",
    "mamba2": "Mamba 2",
    "maple": "Maple",
    "mellum": "Mellum 2",
    "mimo2": "MiMo-V2",
    "minicpm": "MiniCPM",
    "minicpm3": "MiniCPM 3",
    "minimax-01": "MiniMax-Text-01",
    "minimax-m2": "MiniMax-M2",
    "minimax-m3": "MiniMax-M3",
    "mistral3": "Ministral 3",
    "mistral4": "Mistral 4",
    "modern-bert": "ModernBERT",
    "mpt": "MPT",
    "muse-glimmer": "text part of Muse Glimmer",
    "nanbeige": "Nanbeige 4",
    "nemotron": "Nemotron-4, Minitron",
    "nemotron_h": "Nemotron-H, Nemotron Nano 2",
    "nemotron_h_moe": "Nemotron 3 Nano",
    "neo-bert": "NeoBERT",
    "nomic-bert": "Nomic Embed",
    "nomic-bert-moe": "Nomic Embed 2",
    "olmo": "OLMo",
    "olmo2": "OLMo 2, OLMo 3",
    "olmoe": "OLMoE",
    "openelm": "OpenELM",
    "orion": "Orion",
    "paddleocr": "text part of PaddleOCR-VL",
    "pangu-embedded": "Pangu Embedded",
    "phi2": "Phi-1, Phi-2",
    "phi3": "Phi-3, Phi-3.5, Phi-4",
    "phimoe": "Phi-3.5-MoE",
    "plamo": "PLaMo",
    "plamo2": "PLaMo 2",
    "plamo3": "PLaMo 3",
    "plm": "PLM",
    "qwen": "Qwen",
    "qwen2": "Qwen 1.5, 2, 2.5, QwQ",
    "qwen2moe": "Qwen 1.5 and 2 with experts",
    "qwen2vl": "text part of Qwen2-VL and Qwen2.5-VL",
    "qwen3": "Qwen 3, Qwen 3 Embedding and Reranker",
    "qwen35": "Qwen 3.5",
    "qwen35moe": "Qwen 3.5 with experts",
    "qwen3moe": "Qwen 3 with experts",
    "qwen3next": "Qwen3-Next",
    "qwen3vl": "text part of Qwen3-VL",
    "qwen3vlmoe": "text part of Qwen3-VL with experts",
    "qwen4exp": "Qwen 4 experimental, Qwen 3.8 Flash",
    "refact": "Refact",
    "rwkv6": "RWKV 6 Finch",
    "rwkv6qwen2": "QRWKV 6",
    "rwkv7": "RWKV 7 Goose",
    "seed_oss": "Seed-OSS",
    "smallthinker": "SmallThinker",
    "smollm3": "SmolLM 3",
    "spark2_5": "Spark 2.5",
    "stablelm": "StableLM",
    "starcoder": "StarCoder",
    "starcoder2": "StarCoder 2",
    "step35": "Step 3.5 Flash",
    "t5": "T5, Flan-T5, mT5, umT5, MADLAD-400",
    "t5encoder": "encoder of T5",
    "talkie": "Talkie",
    "xverse": "XVERSE",
}


# What a tape shows: the feature, and what stands in the tape of an architecture that has it.
FEATURES = {
    "encoder": r"\A(?!.* out=-1\b)",
    "experts": r"^route ",
    "latent": r"attn_v_b\.weight|attn_output_a\.weight",
    "blocks": r"^attend .* blocks=",
    "chosen keys": r"^attend .* chosen=",
    "windows": r"^attend .* (?:window|chunk)=[1-9]",
    "adapters": r"^switch ",
    "source": r"^source$",
    "state": r"^(?:conv|scan|delta|wkv|ngram_embed) ",
}

# A class that becomes as many architectures is a wrapper of any of them.
WRAPPED = 4


def features(arch: str) -> str:
    """What the tape of a tiny model of `arch` shows."""
    tape = (TAPES / f"invented_{arch}.tape").read_text(encoding="utf-8")
    flags = {"encoder": re.DOTALL}
    found = [
        name for name, sign in FEATURES.items() if re.search(sign, tape, flags.get(name, re.M))
    ]
    return ", ".join(found) or "dense"


def table() -> str:
    """The whole page."""
    classes: dict[str, list[str]] = {}
    wrappers = [name for name, archs in convertible().items() if len(archs) >= WRAPPED]
    for name, archs in convertible().items():
        for arch in archs:
            one = "wrappers" if name in wrappers else f"`{name}`"
            if one not in classes.setdefault(arch, []):
                classes[arch].append(one)
    rows, sources = [], {}
    for name, record in sorted(recorders().items()):
        made = ", ".join(sorted(classes.get(name, []), key=lambda one: one == "wrappers"))
        rows.append(f"| `{name}` | {NAMES[name]} | {features(name)} | {made} |")
        module = inspect.getmodule(record)
        sources.setdefault(module.__name__.rpartition(".")[2], (module, []))[1].append(name)
    listed = []
    for module, names in (sources[key] for key in sorted(sources)):
        about = " ".join((module.__doc__ or "").strip().split("\n\n")[0].split())
        listed.append(f"- {', '.join(f'`{name}`' for name in names)}: {about}")
    names = ", ".join(f"`{name}`" for name in wrappers)
    beside = "\n".join(textwrap.wrap(f"Wrappers: {names}.", 99, break_on_hyphens=False))
    return HEAD + "\n".join(rows) + f"\n\n{beside}\n" + TAIL + "\n" + "\n".join(listed) + "\n"


if __name__ == "__main__":
    PAGE.write_text(table(), encoding="utf-8")
