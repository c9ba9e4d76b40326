"""How a byte-level vocabulary splits text into words before it merges: a sequence of regular
expressions per `tokenizer.ggml.pre`.

The expressions are those of the published models (their `tokenizer.json` files). Each is applied in
turn to the pieces left by the one before; a match becomes a piece, and so does the text between two
matches.
"""

from __future__ import annotations

_CONTRACTIONS = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + _TAIL
_QWEN2 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + _TAIL
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED_TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*|\p{{N}}"
    + _CASED_TAIL
)
_GPT4O = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_CONTRACTIONS}?|[^\r\n"
    rf"\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_CONTRACTIONS}?"
    r"|\p{N}{1,3}" + _CASED_TAIL
)
_DEEPSEEK_LETTERS = (
    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-\u1f7dᾀ-ᾴᾶ-ᾼ\u1fbe"
    "ῂ-ῄῆ-ῌῐ-\u1fd3ῖ-\u1fdbῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\u2126ℨ\u212a-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
)
_DEEPSEEK3 = (
    r"\p{N}{1,3}",
    "[一-龥぀-ゟ゠-ヿ]+",
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n"
    "\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
)
_SPARK = (
    *_DEEPSEEK3[:2],
    _DEEPSEEK3[2].replace(r"[\p{P}\p{S}]+[" + "\r\n]*" + r"|\s*[\r\n]+", r"[\p{P}\p{S}]+|[\r\n]"),
    r"\p{N}",
)
_NO_HAN = "&&[^\\p{Han}]]"
_KIMI = r"\p{Han}+|" + _GPT4O.replace(_UPPER, _UPPER[:-1] + _NO_HAN).replace(
    _LOWER, _LOWER[:-1] + _NO_HAN
).replace(r"[\r\n/]*", r"[\r\n]*")
_YOUTU = (
    "[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥぀-ゟ゠-ヿ]+",
    _GPT4O.replace(r"\p{N}{1,3}", r"\p{N}"),
)
_EXAONE_MOE = (
    _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
)
_BAILING = (
    r"'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| "
    r"?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
)
_CHAMELEON = (
    "<sentinel:[0-9]+>",
    "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z",
    r"([\t\n]|    |  )",
    r"\p{N}",
    r"[\p{P}!-/:-@\[-`{-~]",
    _GPT2,
)
_DIGITS_THEN_GPT2 = (r"\p{N}", _GPT2)
_WORDS_AND_MARKS = (r" ?[^(\s|.,!?…。，、।۔،)]+",)

# scripts without spaces between words
_UNSPACED = (
    "(?:[\u4e00-\u9fff\u3040-\u309f\u30a0-\u30ff\u3400-\u4dbf\uf900-\ufaff\uff65-\uff9f\u2f00-\u2fdf]+"
    "|[\u0e00-\u0e7f]+|[\u0e80-\u0eff]+|[\u1780-\u17ff]+"
    "|[\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff]+|[\uac00-\ud7af\u1100-\u11ff]+)"
)

SPLITS: dict[str, tuple[str, ...]] = {
    "default": (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]"),
    **dict.fromkeys(
        (
            "gpt-2",
            "phi-2",
            "jina-es",
            "jina-de",
            "mpt",
            "olmo",
            "jais",
            "trillion",
            "granite-docling",
            "gigachat",
            "jina-v2-es",
            "jina-v2-de",
            "a.x-4.0",
            "mellum",
            "modern-bert",
            "exaone4",
            "roberta-bpe",
            "jina-v1-en",
            "jina-v2-code",
        ),
        (_GPT2,),
    ),
    **dict.fromkeys(
        (
            "llama3",
            "llama-v3",
            "llama-bpe",
            "falcon3",
            "pixtral",
            "lfm2",
            "dbrx",
            "smaug-bpe",
            "chatglm-bpe",
            "glm4",
            "glm5",
            "midm-2.0",
            "falcon-h1",
            "jina-v5-nano",
        ),
        (_LLAMA3,),
    ),
    **dict.fromkeys(
        (
            "qwen2",
            "stablelm2",
            "deepseek-r1-qwen",
            "kormo",
            "megrez",
            "hunyuan",
            "grok-2",
            "solar-open",
            "f2llmv2",
        ),
        (_QWEN2,),
    ),
    "tekken": (_TEKKEN,),
    **dict.fromkeys(
        ("gpt-4o", "llama4", "minimax-m2", "kanana2", "talkie", "granite-embed-multi-97m"),
        (_GPT4O,),
    ),
    **dict.fromkeys(
        (
            "smollm",
            "starcoder",
            "refact",
            "command-r",
            "codeshell",
            "exaone",
            "minerva-7b",
            "granite-code",
            "mellum2",
        ),
        _DIGITS_THEN_GPT2,
    ),
    "deepseek-llm": (
        "[\r\n]",
        rf"\s?[{_DEEPSEEK_LETTERS}]+",
        r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
        r"\s+(?![\s\S])",
        "[一-龥ࠀ-一가-\ud7ff]+",
        r"\p{N}+",
    ),
    "deepseek-coder": ("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-\ud7ff]+", r"\p{N}"),
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"), _DEEPSEEK3),
    "falcon": (r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]"),
    **dict.fromkeys(("poro-chat", "bloom", "gpt3-finnish"), _WORDS_AND_MARKS),
    "viking": (*_WORDS_AND_MARKS, r"\p{N}"),
    **dict.fromkeys(("bailingmoe", "bailingmoe2", "llada-moe"), (_BAILING,)),
    "qwen35": (
        _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
        r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ),
    "ufakzeka": (_QWEN2.removeprefix(_CONTRACTIONS + "|"),),
    "laguna": (r"[^\n]+|\n+", _QWEN2),
    "minicpm5": (r"\p{N}{1,3}", _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}+")),
    "jais-2": (
        _LLAMA3.removesuffix(r"|\s+(?!\S)|\s+")
        + "".join(rf"|\s{{{n}}}(?!\S)" for n in (512, 256, 128, 64, 32, 16, 8, 4))
        + r"|\s{1,2}(?!\S)|\s",
    ),
    "spark2_5": _SPARK,
    "kimi-k2": (_KIMI,),
    "youtu": _YOUTU,
    "exaone-moe": (_EXAONE_MOE,),
    "chameleon": _CHAMELEON,
    **dict.fromkeys(("tiny_aya", "cohere2moe"), (r"\d{1,3}(?=(?:\d{3})*\b)", _GPT4O)),
    "superbpe": (r"\p{N}+", r"(?=(\d{3})+(?!\d))"),
    "afmoe": (
        r"\p{Nd}{1,510}(?=(?>\p{Nd}{510})*(?:\P{Nd}|$))|\G\p{Nd}{510}",
        r"\A\p{Nd}{1,2}(?=\p{Nd}{3}+\z)",
        r"\A\p{Nd}{3}|\G\p{Nd}{3}",
        _UNSPACED,
        _DEEPSEEK3[2],
    ),
    "seed-coder": (
        _CONTRACTIONS
        + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+",
    ),
}

# A word that is a token as it stands is taken whole, whatever the merges say.
WHOLE_WORDS = frozenset(
    {
        "llama3",
        "llama-v3",
        "llama-bpe",
        "falcon3",
        "falcon-h1",
        "pixtral",
        "midm-2.0",
        "lfm2",
        "jina-v5-nano",
        "tekken",
        "minicpm5",
        "youtu",
        "granite-embed-multi-97m",
        "glm4",
        "glm5",
    }
)
