"""Trains the embedded model: a small llama-shaped network on the stories and conversations of
Willow Valley.

`python tools/train_embedded.py --work DIR` makes tokenizer and data, trains with a fixed seed,
saves DIR/checkpoint.pt as it goes (a second start resumes there), prints samples, and ends with
DIR/final.pt, which `tools/export_embedded.py` writes as GGUF. Needs the `train` extra. The file in
the package is the state after the main course, step 1500 of 2100; weights and tokenizer of a new
run differ a little from it, because the mix of conversations was widened while it was trained.
"""

from __future__ import annotations

import argparse
import math
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from story_data import (
    BEGIN,
    END,
    IGNORED,
    IM_END,
    IM_START,
    VOCAB,
    encode,
    packed_rows,
    train_tokenizer,
)
from tokenizers import Tokenizer
from torch import nn
from torch.nn import functional as F

SEED = 20261121
PROMPTS = (
    "Once upon a time",
    "chat:Tell me a story about a fox and a lantern.",
    "chat:Where does Bruno live?",
    "chat:Hello!",
    "chat:What is the capital of France?",
)


@dataclass(frozen=True, slots=True)
class Shape:
    """The hyper-parameters of the network, under the names that GGUF's llama keys use."""

    vocab: int = VOCAB
    embedding_length: int = 256
    block_count: int = 5
    feed_forward_length: int = 512
    head_count: int = 8
    head_count_kv: int = 4
    head_dim: int = 32
    context_length: int = 1024
    rope_base: float = 10000.0
    rms_eps: float = 1e-5


class Block(nn.Module):
    """One llama block: RMS norm, grouped-query attention with adjacent-pair rotation, RMS norm,
    SiLU-gated feed-forward.
    """

    def __init__(self, s: Shape) -> None:
        """Makes the weights; what writes into the residual stream starts at zero."""
        super().__init__()
        self.s, d = s, s.embedding_length
        self.attn_norm, self.ffn_norm = nn.RMSNorm(d, s.rms_eps), nn.RMSNorm(d, s.rms_eps)
        self.attn_q = nn.Linear(d, s.head_count * s.head_dim, bias=False)
        self.attn_k = nn.Linear(d, s.head_count_kv * s.head_dim, bias=False)
        self.attn_v = nn.Linear(d, s.head_count_kv * s.head_dim, bias=False)
        self.attn_output = nn.Linear(s.head_count * s.head_dim, d, bias=False)
        self.ffn_gate, self.ffn_up = (
            nn.Linear(d, s.feed_forward_length, bias=False),
            nn.Linear(d, s.feed_forward_length, bias=False),
        )
        self.ffn_down = nn.Linear(s.feed_forward_length, d, bias=False)
        for zero in (self.attn_output, self.ffn_down):
            nn.init.zeros_(zero.weight)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """x (batch, tokens, width) through the block; cos and sin (tokens, head_dim / 2)."""
        s, (b, t, _) = self.s, x.shape
        h = self.attn_norm(x)
        q = self.attn_q(h).view(b, t, s.head_count, s.head_dim).transpose(1, 2)
        k = self.attn_k(h).view(b, t, s.head_count_kv, s.head_dim).transpose(1, 2)
        v = self.attn_v(h).view(b, t, s.head_count_kv, s.head_dim).transpose(1, 2)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        groups = s.head_count // s.head_count_kv
        a = F.scaled_dot_product_attention(
            q, k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1), is_causal=True
        )
        x = x + self.attn_output(a.transpose(1, 2).reshape(b, t, -1))
        h = self.ffn_norm(x)
        return x + self.ffn_down(F.silu(self.ffn_gate(h)) * self.ffn_up(h))


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary embedding over adjacent pairs (x0, x1), (x2, x3) ... (Su et al. 2021, eq. 34), the
    order of GGUF's llama files.
    """
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2).type_as(x)


class Llama(nn.Module):
    """The whole network with tied input and output embeddings."""

    def __init__(self, s: Shape) -> None:
        """Makes blocks, norm and embedding."""
        super().__init__()
        self.s = s
        self.token_embd = nn.Embedding(s.vocab, s.embedding_length)
        self.blk = nn.ModuleList(Block(s) for _ in range(s.block_count))
        self.output_norm = nn.RMSNorm(s.embedding_length, s.rms_eps)
        nn.init.normal_(self.token_embd.weight, std=0.02)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Hidden states (batch, tokens, width) of ids (batch, tokens); `logits` turns them into
        scores.
        """
        half = torch.arange(0, self.s.head_dim, 2, dtype=torch.float64) / self.s.head_dim
        angles = torch.arange(ids.shape[1], dtype=torch.float64)[:, None] * self.s.rope_base**-half
        cos, sin = angles.cos().float(), angles.sin().float()
        x = self.token_embd(ids)
        for block in self.blk:
            x = block(x, cos, sin)
        return self.output_norm(x)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Scores over the vocabulary."""
        return F.linear(hidden, self.token_embd.weight)


def loss_of(model: nn.Module, net: Llama, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Mean cross entropy over the tokens that count; scores are made only for those."""
    with torch.autocast("cpu", torch.bfloat16):
        hidden = model(ids[:, :-1])
        wanted = labels[:, 1:] != IGNORED
        scores = net.logits(hidden[wanted])
    return F.cross_entropy(scores.float(), labels[:, 1:][wanted])


@torch.no_grad()
def sample(
    net: Llama, tokenizer: Tokenizer, prompt: str, *, temperature: float = 0.0, limit: int = 260
) -> str:
    """The network's continuation of a prompt ('chat:' before it makes it a user's turn), in f32,
    until an end token.
    """
    if prompt.startswith("chat:"):
        nl = encode(tokenizer, "\n")
        ids = [
            BEGIN,
            IM_START,
            *encode(tokenizer, "user\n" + prompt[5:]),
            IM_END,
            *nl,
            IM_START,
            *encode(tokenizer, "assistant\n"),
        ]
    else:
        ids = [BEGIN, *encode(tokenizer, prompt)]
    start = len(ids)
    for _ in range(limit):
        scores = net.logits(net(torch.tensor([ids]))[:, -1])[0]
        pick = (
            int(scores.argmax())
            if temperature == 0
            else int(torch.multinomial((scores / temperature).softmax(-1), 1))
        )
        if pick in (END, IM_END):
            ids.append(pick)
            break
        ids.append(pick)
    return tokenizer.decode(ids[start:], skip_special_tokens=False)


def optimisers(net: Llama) -> list[torch.optim.Optimizer]:
    """Muon for the blocks' matrices, AdamW for embedding and norms."""
    matrices = [p for p in net.blk.parameters() if p.ndim == 2]
    rest = [p for p in net.parameters() if all(p is not m for m in matrices)]
    return [
        torch.optim.Muon(
            matrices, lr=4e-3, weight_decay=0.05, momentum=0.95, adjust_lr_fn="match_rms_adamw"
        ),
        torch.optim.AdamW(rest, lr=3e-3, betas=(0.9, 0.98), weight_decay=0.0),
    ]


@dataclass(frozen=True, slots=True)
class Phase:
    """A stretch of the training: its last step in fourteenths of all, the tokens of a row, the
    shares of conversations and drills.
    """

    until: int
    length: int
    talk: float
    drills: float


PHASES = (
    Phase(5, 512, 0.54, 0.0),
    Phase(9, 512, 0.8, 0.0),
    Phase(10, 1024, 0.8, 0.0),
    Phase(12, 512, 0.75, 0.45),
    Phase(14, 1024, 0.75, 0.45),
)


def pace(step: int, steps: int) -> float:
    """The learning rate's factor: a warm-up and a cosine down to zero over ten fourteenths, then
    0.35, level and then straight to zero.
    """
    main = steps * 10 // 14
    if step < main:
        return min(1.0, (step + 1) / 60) * (0.5 + 0.5 * math.cos(math.pi * step / main))
    return 0.35 * min(1.0, (step - main + 1) / 20, (steps - step) / (0.6 * (steps - main)))


def train(work: Path, steps: int, tokens_per_step: int) -> None:
    """Trains for `steps` steps: stories and talk, then more talk, then drills too, each at last in
    rows of 1024 tokens.
    """
    console = Console()
    torch.manual_seed(SEED)
    work.mkdir(parents=True, exist_ok=True)
    vocabulary = work / "tokenizer.json"
    if not vocabulary.exists():
        train_tokenizer(SEED).save(str(vocabulary))
    tokenizer = Tokenizer.from_file(str(vocabulary))
    net = Llama(Shape())
    model = torch.compile(net, dynamic=False)
    opts = optimisers(net)
    rates = [g["lr"] for o in opts for g in o.param_groups]
    first = 0
    if (work / "checkpoint.pt").exists():
        saved = torch.load(work / "checkpoint.pt")
        net.load_state_dict(saved["net"])
        for opt, state in zip(opts, saved["opts"]):
            opt.load_state_dict(state)
        first = saved["step"]
    console.print(
        f"{sum(p.numel() for p in net.parameters()):,} parameters, {steps} steps of "
        f"{tokens_per_step} tokens, from step {first}"
    )
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("training", total=steps, completed=first)
        for index, phase in enumerate(PHASES):
            start, end = (
                steps * n // 14 for n in (PHASES[index - 1].until if index else 0, phase.until)
            )
            begin = max(first, start)
            if begin >= end:
                continue
            batch, clock = tokens_per_step // phase.length, time.time()
            arrays = packed_rows(
                tokenizer,
                seed=SEED + 2 + 2 * index,
                count=(end - start) * tokens_per_step // 120,
                length=phase.length,
                talk=phase.talk,
                drills=phase.drills,
            )
            ids, labels = (torch.from_numpy(a.astype("int64")) for a in arrays)
            for step in range(begin, end):
                at = torch.arange((step - start) * batch, (step - start + 1) * batch) % len(ids)
                loss = loss_of(model, net, ids[at], labels[at])
                loss.backward()
                nn.utils.clip_grad_norm_(net.parameters(), 1.0)
                for group, rate in zip((g for o in opts for g in o.param_groups), rates):
                    group["lr"] = rate * pace(step, steps)
                for opt in opts:
                    opt.step()
                    opt.zero_grad(set_to_none=True)
                bar.update(task, completed=step + 1)
                if step % 50 == 0:
                    speed = (step - begin + 1) * tokens_per_step / (time.time() - clock)
                    console.print(f"step {step} loss {loss.item():.4f} {speed:.0f} tokens/s")
                if (step + 1) % 50 == 0 or step + 1 == steps:
                    torch.save(
                        {
                            "net": net.state_dict(),
                            "opts": [o.state_dict() for o in opts],
                            "step": step + 1,
                        },
                        work / "checkpoint.part",
                    )
                    (work / "checkpoint.part").replace(work / "checkpoint.pt")
                if (step + 1) % 250 == 0:
                    for prompt in PROMPTS:
                        console.print(f"[{prompt}] {sample(net, tokenizer, prompt)}", markup=False)
    torch.save(
        {"net": net.state_dict(), "shape": asdict(net.s), "loss": loss.item(), "steps": steps},
        work / "final.pt",
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--work", type=Path, required=True, help="folder for tokenizer, checkpoints and result"
    )
    parser.add_argument("--steps", type=int, default=2100)
    parser.add_argument("--tokens-per-step", type=int, default=4096)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    train(arguments.work, arguments.steps, arguments.tokens_per_step)
