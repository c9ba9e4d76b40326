"""Turns stories and conversations into training rows: the byte-level tokenizer, the chat mark-up
and the packing.

A document starts with <|begin|>; a story ends with <|end|>; a conversation is marked up as
`CHAT_TEMPLATE` renders it. Only what the model shall say is trained on: stories whole, of
conversations the narrator's turns.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
from story_chat import about, conversation, drill
from story_plots import tell
from story_world import PEOPLE, visitor
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

SPECIALS = ("<|begin|>", "<|end|>", "<|im_start|>", "<|im_end|>", "<|pad|>")
BEGIN, END, IM_START, IM_END, PAD = range(5)
VOCAB = 2048
IGNORED = -100
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}{% "
    "endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def documents(
    seed: int, count: int, *, talk: float = 0.54, drills: float = 0.0
) -> Iterator[str | list[tuple[str, str]]]:
    """Yields `count` documents of the world: a string is a story or a portrait, a list a
    conversation.

    `talk` is the share of the latter, `drills` the share among all of conversations that only ask
    for what was said before.
    """
    rng = random.Random(seed)
    for _ in range(count):
        draw = rng.random()
        if draw < (1 - talk) * 0.93:
            yield tell(
                rng, hero=visitor(rng) if rng.random() < 0.3 else None, short=rng.random() < 0.06
            ).text
        elif draw < 1 - talk:
            yield about(rng.choice(PEOPLE))
        else:
            yield drill(rng) if draw >= 1 - drills else conversation(rng)


def train_tokenizer(seed: int, count: int = 6000) -> Tokenizer:
    """A byte-level BPE tokenizer with GPT-2's splitting of words, trained on `count` documents of
    its own draw.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=list(SPECIALS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = (
        doc if isinstance(doc, str) else "\n".join(f"{role}\n{text}" for role, text in doc)
        for doc in documents(seed, count)
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def encode(tokenizer: Tokenizer, text: str) -> list[int]:
    """Token ids of plain text, in which special tokens are not looked for."""
    return tokenizer.encode(text, add_special_tokens=False).ids


def encode_document(
    tokenizer: Tokenizer, doc: str | list[tuple[str, str]], rng: random.Random
) -> tuple[list[int], list[bool]]:
    """Ids of one document and, for each, whether the model is trained to say it; now and then
    <|begin|> is left out, as callers may.
    """
    ids = [] if rng.random() < 0.08 else [BEGIN]
    said = [False] * len(ids)
    if isinstance(doc, str):
        ids += [*encode(tokenizer, doc), END]
        return ids, said + [True] * (len(ids) - len(said))
    for role, text in doc:
        head, body = [IM_START, *encode(tokenizer, role + "\n")], encode(tokenizer, text)
        ids += [*head, *body, IM_END, *encode(tokenizer, "\n")]
        said += [False] * len(head) + [role == "assistant"] * (len(body) + 1) + [False]
    return ids, said


def packed_rows(
    tokenizer: Tokenizer, *, seed: int, count: int, length: int, talk: float, drills: float
) -> tuple[np.ndarray, np.ndarray]:
    """Rows of `length` + 1 ids and labels (uint16, int16), each row starting with a document;
    longer documents are cut.
    """
    rng = random.Random(seed + 1)
    rows: list[tuple[list[int], list[int]]] = []
    room: list[tuple[list[int], list[int]]] = []
    for doc in documents(seed, count, talk=talk, drills=drills):
        ids, said = encode_document(tokenizer, doc, rng)
        ids = ids[: length + 1]
        labels = [i if s else IGNORED for i, s in zip(ids, said)]
        fits = [r for r in room if len(r[0]) + len(ids) <= length + 1]
        if fits:
            best = max(fits, key=lambda r: len(r[0]))
            best[0].extend(ids)
            best[1].extend(labels)
            continue
        room.append((ids, labels))
        if len(room) > 48:
            rows.append(room.pop(max(range(len(room)), key=lambda i: len(room[i][0]))))
    rows += room
    rng.shuffle(rows)
    ids = np.full((len(rows), length + 1), PAD, np.uint16)
    labels = np.full((len(rows), length + 1), IGNORED, np.int16)
    for i, (row, label) in enumerate(rows):
        ids[i, : len(row)], labels[i, : len(row)] = row, label
    return ids, labels
