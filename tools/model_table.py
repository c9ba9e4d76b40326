"""Writes the table and the list of sources in docs/models.md: every architecture that is
registered, what is known under its name, and what its layers keep, by the tape of a tiny model of
it that the tests hold.

`python tools/model_table.py` after an architecture was added; a test compares.
"""

import inspect
import re
import textwrap
from pathlib import Path
from types import ModuleType

from oxillama.convert import convertible
from oxillama.model.builder import recorders

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "models.md"
TAPES = ROOT / "tests" / "model" / "golden"
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
    "dream": "Dream, Dream-Coder",
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
    "lfm2": "LFM 2, LFM2.5-Embedding, LFM2-ColBERT",
    "lfm2moe": "LFM 2 with experts",
    "llama": "Llama, Mistral, Mixtral, SmolLM, TinyLlama, CodeLlama, InternLM 3, Yi",
    "llama-embed": "Llama embedders of NVIDIA",
    "llama4": "Llama 4",
    "llada": "LLaDA",
    "llada-moe": "LLaDA-MoE",
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
    "rnd1": "RND1",
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
    "masks": r"\A(?=.*causal=False)(?=.* out=-1\b)(?!.*\nsource\n)",
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
    flags = {"encoder": re.DOTALL, "masks": re.DOTALL}
    found = [
        name for name, sign in FEATURES.items() if re.search(sign, tape, flags.get(name, re.M))
    ]
    return ", ".join(found) or "dense"


def filled(page: str) -> str:
    """The page with a table and sources of today between its marks."""
    for name, text in (("table", table()), ("sources", sources())):
        part = re.compile(rf"(<!-- {name} -->\n).*?(\n<!-- end -->)", re.DOTALL)
        page = part.sub(lambda marks, text=text: marks[1] + text + marks[2], page)
    return page


def table() -> str:
    """A row for each architecture, and the names of wrappers."""
    classes: dict[str, list[str]] = {}
    wrappers = [name for name, archs in convertible().items() if len(archs) >= WRAPPED]
    for name, archs in convertible().items():
        for arch in archs:
            one = "wrappers" if name in wrappers else f"`{name}`"
            if one not in classes.setdefault(arch, []):
                classes[arch].append(one)
    rows = ["| architecture | models | what it has | converted from |", "| --- | --- | --- | --- |"]
    for name in sorted(recorders()):
        made = ", ".join(sorted(classes.get(name, []), key=lambda one: one == "wrappers"))
        rows.append(f"| `{name}` | {NAMES[name]} | {features(name)} | {made} |")
    listed = f"Wrappers: {', '.join(f'`{name}`' for name in wrappers)}."
    return "\n".join([*rows, "", *textwrap.wrap(listed, 99, break_on_hyphens=False)])


def sources() -> str:
    """What the modules of architectures say of themselves, with the names of what they record."""
    modules: dict[str, tuple[ModuleType, list[str]]] = {}
    for name, record in sorted(recorders().items()):
        module = inspect.getmodule(record)
        modules.setdefault(module.__name__.rpartition(".")[2], (module, []))[1].append(name)
    listed = []
    for module, names in (modules[key] for key in sorted(modules)):
        about = " ".join((module.__doc__ or "").strip().split("\n\n")[0].split())
        listed.append(f"- {', '.join(f'`{name}`' for name in names)}: {about}")
    return "\n".join(listed)


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
