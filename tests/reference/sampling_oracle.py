"""What every sampler stage means, in plain numpy: slow, double precision, whole-vocabulary sorts.
Imports nothing of the package.

A distribution is a pair (ids, logits): int and float64 arrays in descending order of logit, ties by
ascending id. Each function returns a new pair. `SLACK` is part of the law: masses and probabilities
that miss a bound by less than float32 rounding reach it.
"""

import numpy as np

SLACK = 1 - 2.0**-22


def start(logits, removed=()):
    """The distribution of a row, without removed tokens and without -inf."""
    x = np.asarray(logits, dtype=np.float32).astype(np.float64)
    ids = np.arange(len(x))
    keep = np.isfinite(x)
    keep[list(removed)] = False
    return order(ids[keep], x[keep])


def order(ids, logits):
    by = np.lexsort((ids, -logits))
    return ids[by], logits[by]


def probs(d):
    w = np.exp(d[1] - d[1].max())
    return w / w.sum()


def pick(d, keep):
    return d[0][keep], d[1][keep]


def entropy(d):
    p = probs(d)
    p = p[p > 0]
    return float(max(0.0, -(p * np.log(p)).sum()))


def penalties(d, history, repetition, frequency, presence, window):
    recent = history if window < 0 else history[len(history) - min(window, len(history)) :]
    ids, x = d[0], d[1].copy()
    at = {int(token): i for i, token in enumerate(ids)}
    for token in set(recent):
        if token in at:
            i, n = at[token], recent.count(token)
            y = x[i] * repetition if x[i] <= 0 else x[i] / repetition
            x[i] = np.clip(
                y - (n * frequency + presence), -3.4028234663852886e38, 3.4028234663852886e38
            )
    return order(ids, x.astype(np.float32).astype(np.float64))


def dry(d, history, multiplier, base, allowed, last_n, breakers=()):
    """Straight from the definition: for every earlier end of the newest suffix, count the common
    tokens, stop at breakers.
    """
    h = list(history if last_n < 0 else history[len(history) - min(last_n, len(history)) :])
    n = len(h)
    if n <= allowed:
        return d
    limit = n
    for i in range(n):
        at = n - 1 - i
        sizes = [len(b) for b in breakers if tuple(h[at : at + len(b)]) == tuple(b)]
        if sizes:
            limit = i - (max(sizes) - 1)
            break
    longest = {}
    # h[end] ends the earlier occurrence, h[end + 1] is what it continued with
    for end in range(n - 1):
        size = 0
        while size <= end and h[end - size] == h[n - 1 - size]:
            size += 1
        size = min(size, limit)
        token = h[end + 1]
        if size >= allowed and (token,) not in [tuple(b) for b in breakers]:
            longest[token] = max(longest.get(token, 0), size)
    x = d[1].copy()
    for i, token in enumerate(d[0]):
        if token in longest:
            x[i] = max(
                -3.4028234663852886e38,
                x[i] - min(multiplier * base ** (longest[token] - allowed), 3.4028234663852886e38),
            )
    return order(d[0], x.astype(np.float32).astype(np.float64))


def top_n_sigma(d, n):
    return pick(d, d[1] >= d[1].max() - n * d[1].std())


def top_k(d, k):
    return pick(d, np.arange(len(d[0])) < k)


def typical(d, p):
    q = probs(d)
    with np.errstate(divide="ignore"):
        distance = np.abs(-np.log(q) - entropy(d)).astype(np.float32)
    by = np.lexsort((d[0], distance))
    last = np.searchsorted(np.cumsum(q[by]), p * SLACK)
    keep = np.zeros(len(q), bool)
    keep[by[: last + 1]] = True
    return pick(d, keep)


def at_least(d, bound):
    q = probs(d)
    return pick(d, q >= min(bound, q.max()) * SLACK)


def top_a(d, a):
    return at_least(d, a * probs(d).max() ** 2)


def eta(d, e):
    return at_least(d, min(e, np.sqrt(e) * np.exp(-entropy(d))))


def epsilon(d, e):
    return at_least(d, e)


def min_p(d, p):
    return at_least(d, p * probs(d).max())


def top_p(d, p):
    last = np.searchsorted(np.cumsum(probs(d)), p * SLACK)
    return pick(d, np.arange(len(d[0])) <= last)


def xtc(d, u, probability, threshold, special=()):
    if not u < probability:
        return d
    reached = np.flatnonzero(probs(d) >= threshold * SLACK)
    keep = np.ones(len(d[0]), bool)
    keep[reached[:-1]] = False
    return pick(d, keep | np.isin(d[0], list(special)))


def temperature(d, t, spread=0.0, exponent=1.0):
    if spread > 0 and len(d[0]) > 1:
        low = max(0.0, t - spread)
        t = low + (t + spread - low) * min(1.0, entropy(d) / np.log(len(d[0]))) ** exponent
    elif spread > 0:
        pass
    return top_k(d, 1) if t == 0 else (d[0], d[1] / t)


def mirostat_v2_cut(d, mu):
    return at_least(d, 2.0**-mu)


def mirostat_v1_k(d, mu, vocab):
    head = d[1][:100]
    t = np.log((np.arange(len(head) - 1) + 2) / (np.arange(len(head) - 1) + 1))
    b = head[:-1] - head[1:]
    if len(head) < 2 or not (t * b).sum() > 0:
        return None
    s = (t * b).sum() / (t * t).sum()
    e = s - 1
    return float((e * 2.0**mu / (1 - vocab**-e)) ** (1 / s))


def draw(d, u):
    """The first token, in descending order, whose cumulative probability is above u."""
    return int(d[0][np.searchsorted(np.cumsum(probs(d)), u, side="right")])


class Xorshift:
    """The random stream of a seed, in Python integers: xorshift64 from the first output of
    SplitMix64.
    """

    def __init__(self, seed):
        z = seed + 0x9E3779B97F4A7C15 & (1 << 64) - 1
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & (1 << 64) - 1
        z = (z ^ z >> 27) * 0x94D049BB133111EB & (1 << 64) - 1
        self.x = z ^ z >> 31 or 0x517CC1B727220A95

    def u64(self):
        x = self.x
        x ^= x << 13 & (1 << 64) - 1
        x ^= x >> 7
        x ^= x << 17 & (1 << 64) - 1
        self.x = x
        return x

    def f32(self):
        return (self.u64() >> 40) / 2**24
