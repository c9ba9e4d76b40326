"""Evaluates the common beginning of prompts only once: a radix tree over tokens whose nodes own
pages.

    root --"You are a helpful ..." (2000 tokens, pages 3..127)
              +--"Hello" ... (leaf, pages 127' 128)
              +--"What is" ... (leaf, pages 127'' 129 130)

A node covers positions `start` to `start + len(tokens) - 1` and owns a share of every page of those
positions. If an edge begins inside a page, the child's first page holds the complete page
(including its parent's part), so that the pages along a path, with the deeper node's first, are a
block table. Hits are exact to the token: a sequence that continues inside a page gets a copy of its
filled part when it writes (invariant 3 of `pages`).

Where windowed layers lie apart (`pages`), a node also holds the near parts of its pages, and a
prefix can be used up to any position whose window is there. When the cache is full, or others need
memory, near parts go first: those that only a prefix ending between two ends or branches would
use, of the nodes least recently used. The window before an end goes with its node. A later
sequence that brings what is missing puts it back.

Invariants (tests cite them by number):

1. Two children of a node never begin with the same token.
2. Each node holds exactly one share of each page of its positions.
3. `pages_used` counts distinct pages, and `memory_bytes <= max_memory_bytes`,
   `entries <= max_entries`, after every call.
4. A hit never covers the whole prompt: its last token is evaluated again, so that there are logits.
5. Keys separate: nothing stored under one key is found under another.
6. Each node holds exactly one share of the near part of each page in `near`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from oxillama.engine.memory.pages import KvCachePool
from oxillama.errors import ConfigError, not_pickled


@dataclass(frozen=True, slots=True)
class Hit:
    """The result of a lookup: `length` tokens in `pages` (whose shares now belong to the caller,
    from page `shed` on also those of near parts), and a checkpoint of recurrent state.
    """

    length: int
    pages: list[int]
    checkpoint: Any = None
    shed: int = 0


class _Node:
    __slots__ = ("checkpoints", "children", "near", "pages", "parent", "start", "tokens", "used")

    def __init__(
        self, parent: _Node | None, start: int, tokens: Sequence[int], pages: list[int]
    ) -> None:
        self.parent = parent
        self.start = start
        self.tokens = tokens
        self.pages = pages
        self.near: set[int] = set()  # of them, those whose near part it holds
        self.children: dict[Hashable, _Node] = {}
        self.checkpoints: dict[int, Any] = {}  # position -> state
        self.used = 0


class PrefixKvCache:
    """The prefix cache: a radix tree over tokens that owns pages of evaluated prefixes. The least
    recently used leaf is evicted first.

    With `stateful=True`, a prefix can be used only up to a position with a checkpoint of recurrent
    state that is still `alive`.
    """

    __reduce__ = not_pickled(
        "prefix cache: owns pages in memory of this process",
        "make one in each process",
    )

    def __init__(
        self,
        pool: KvCachePool,
        *,
        min_prefix_len: int = 4,
        max_entries: int = 256,
        max_memory_bytes: int = 512 << 20,
        stateful: bool = False,
        alive: Callable[[Any], bool] = lambda checkpoint: True,
    ) -> None:
        if not hasattr(pool, "memory"):
            raise ConfigError(f"pool: found {pool!r:.50}, wanted a KvCachePool")
        for name, value, least in (
            ("min_prefix_len", min_prefix_len, 1),
            ("max_entries", max_entries, 0),
            ("max_memory_bytes", max_memory_bytes, 0),
        ):
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ConfigError(f"{name}: found {value!r}, wanted an integer of {least} or more")
        self.pool, self.alive = pool, alive
        self.min_prefix_len, self.max_entries, self.stateful = min_prefix_len, max_entries, stateful
        self.max_pages = max_memory_bytes // max(1, pool.memory.page_bytes)
        self.max_memory_bytes = self.max_pages * max(1, pool.memory.page_bytes)
        self.hits = self.misses = self.tokens_saved = self.evictions = 0
        self._roots: dict[Hashable, _Node] = {}
        self._shares: dict[int, int] = {}  # page -> nodes that hold it
        self._near: dict[int, int] = {}  # page -> nodes that hold its near part
        self._leaves: dict[_Node, None] = {}  # in no order that matters
        self._clock = 0
        self.forgotten = 0  # the last use of all that was evicted: what was used later is there

    @property
    def uses(self) -> int:
        """How often something was stored or found so far."""
        return self._clock

    @property
    def entries(self) -> int:
        """Stored sequences: leaves of the tree."""
        return len(self._leaves)

    @property
    def pages_used(self) -> int:
        """Distinct pages the tree has a share in."""
        return len(self._shares)

    @property
    def shares(self) -> Mapping[int, int]:
        """The pages the tree has a share in, each with how many it has."""
        return self._shares

    @property
    def near_shares(self) -> Mapping[int, int]:
        """The pages whose near part the tree has a share in, each with how many it has."""
        return self._near

    @property
    def memory_bytes(self) -> int:
        """Bytes of those pages."""
        return len(self._shares) * self.pool.bare_bytes + len(self._near) * self.pool.near_bytes

    def sequences(self) -> list[tuple[Hashable, tuple[int, ...], list[int]]]:
        """(key, tokens, pages) of every stored sequence, least recently used first; no shares are
        taken.
        """
        if self.stateful:
            raise ConfigError(
                "prefix cache: holds checkpoints of recurrent state, which cannot be listed"
            )
        keys, out = {id(root): key for key, root in self._roots.items()}, []
        for leaf in sorted(self._leaves, key=lambda each: each.used):
            path = [leaf]
            while path[-1].parent is not None:
                path.append(path[-1].parent)
            root, *nodes = path[::-1]
            tokens = tuple(token for node in nodes for token in node.tokens)
            out.append((keys[id(root)], tokens, self._table(nodes, len(tokens))))
        return out

    def match(self, tokens: Sequence[int], *, key: Hashable = None) -> int:
        """How many of the tokens, except the last, are stored; does not count as a use."""
        length, path = self._walk(tokens, len(tokens) - 1, key)
        return self._usable(length, path)[0]

    def lookup(self, tokens: Sequence[int], *, key: Hashable = None) -> Hit:
        """The longest stored prefix (length 0 when under `min_prefix_len`) with a share of each of
        its pages.
        """
        hit = self.share(tokens, len(tokens) - 1, key=key)
        self.misses += not hit.length
        self.hits += bool(hit.length)
        self.tokens_saved += hit.length
        return hit

    def share(self, tokens: Sequence[int], limit: int, *, key: Hashable = None) -> Hit:
        """The longest stored prefix of at most `limit` tokens, as `lookup` gives it; counts as
        neither hit nor miss.
        """
        length, path = self._walk(tokens, limit, key)
        length, checkpoint = self._usable(length, path)
        if not length:
            return Hit(0, [])
        self._clock += 1
        for node in path:
            node.used = self._clock
        pages = self._table(path, length)
        shed = self._shed(pages, length)
        self.pool.share_all(pages)
        self.pool.share_near(pages[shed:])
        return Hit(length, pages, checkpoint, shed)

    def find(self, tokens: Sequence[int], *, key: Hashable = None) -> tuple[int, list[int]]:
        """The result that `lookup` would have, as (length, pages); no shares are taken, and it does
        not count as a use.
        """
        length, path = self._walk(tokens, len(tokens) - 1, key)
        length = self._usable(length, path)[0]
        return length, self._table(path, length)

    def insert(
        self,
        tokens: Sequence[int],
        pages: Sequence[int],
        *,
        key: Hashable = None,
        checkpoints: Mapping[int, Any] | None = None,
        shed: int = 0,
    ) -> int:
        """Store the tokens with their pages (a share of each new page is taken, from page `shed` on
        also of its near part, if that has an owner); returns how many of the tokens are stored.

        Leaves are evicted to stay within the limits; what still does not fit is not stored.
        """
        size = self.pool.page_size
        tokens = tuple(tokens[: len(pages) * size])
        if len(tokens) < self.min_prefix_len or not self.max_entries:
            return 0
        length, path = self._walk(tokens, len(tokens), key)
        self._clock += 1
        for node in path:
            node.used = self._clock
        if length < len(tokens):
            first = length // size
            added = pages[first : -(-len(tokens) // size)]
            new = self.pool.bare_bytes * sum(page not in self._shares for page in added)
            near = self._held_near(added[max(0, shed - first) :])
            new += self.pool.near_bytes * sum(page not in self._near for page in near)
            keep = path[-1] if path else None
            # a leaf more
            grows = keep is None or bool(keep.children) or length < keep.start + len(keep.tokens)
            if not self._evict(self.max_memory_bytes - new, self.max_entries - grows, spare=keep):
                return length
            parent = self._split(path[-1], length) if path else self._root(key)
            leaf = _Node(parent, length, tokens[length:], list(added))
            leaf.used = self._clock
            self._hold(leaf.pages)
            self._hold_near(leaf, near)
            parent.children[leaf.tokens[0]] = leaf
            self._leaves.pop(parent, None)
            self._leaves[leaf] = None
            path = [*path[:-1], parent, leaf] if path else [leaf]
        if self.pool.window:
            self._restore_near(path, pages, shed, length)
        for position, state in (checkpoints or {}).items():
            for node in path:
                if node.start < position <= node.start + len(node.tokens):
                    node.checkpoints[position] = state
        return len(tokens)

    def free_pages(self, count: int) -> int:
        """Evict until `count` pages were freed or nothing is left; returns how many were freed."""
        pool = self.pool
        pages, near = pool.pages_used, pool.near_used

        def freed() -> int:
            return pool.whole_pages(pages - pool.pages_used, near - pool.near_used)

        for node, inner in self._inner():
            if freed() >= count:
                break
            self._free_near(node, inner)
        while self._leaves and freed() < count:
            self._drop(min(self._leaves, key=lambda leaf: leaf.used))
        return freed()

    def clear(self) -> None:
        """Remove everything."""
        while self._leaves:
            self._drop(next(iter(self._leaves)))

    def _root(self, key: Hashable) -> _Node:
        if key not in self._roots:
            self._roots[key] = _Node(None, 0, (), [])
        return self._roots[key]

    def _walk(self, tokens: Sequence[int], limit: int, key: Hashable) -> tuple[int, list[_Node]]:
        """(tokens matched, at most `limit`; nodes along the match)."""
        node, at, path = self._roots.get(key), 0, []
        while node is not None and at < limit:
            child = node.children.get(tokens[at])
            if child is None:
                break
            run = child.tokens
            whole = min(len(run), limit - at)
            same = (
                whole
                if tuple(tokens[at : at + whole]) == run[:whole]
                else next(i for i in range(whole) if tokens[at + i] != run[i])
            )
            path.append(child)
            at += same
            if same < len(run):
                break
            node = child
        return at, path

    def _table(self, path: list[_Node], length: int) -> list[int]:
        """The pages of the first `length` positions along a path."""
        size = self.pool.page_size
        pages: list[int] = []
        for node in path:
            if node.start < length:
                del pages[node.start // size :]
                pages.extend(node.pages)
        return pages[: -(-length // size)]

    def _usable(self, length: int, path: list[_Node]) -> tuple[int, Any]:
        """The part of a match that may be used, and its checkpoint."""
        checkpoint = None
        if self.stateful:
            found = [
                (position, node)
                for node in path
                for position in node.checkpoints
                if position <= length and self.alive(node.checkpoints[position])
            ]
            if not found:
                return 0, None
            length, node = max(found, key=lambda pair: pair[0])
            checkpoint = node.checkpoints[length]
        if self.pool.window and length:
            length = self._windowed(self._table(path, length), length)
        return (length, checkpoint) if length >= self.min_prefix_len else (0, None)

    def _split(self, node: _Node, length: int) -> _Node:
        """The node that ends exactly at `length`, `node` or the upper part of it."""
        cut = length - node.start
        if cut == len(node.tokens):
            return node
        size, base = self.pool.page_size, node.start // self.pool.page_size
        parent = node.parent
        assert parent is not None  # a root has no tokens
        upper = _Node(
            parent, node.start, node.tokens[:cut], node.pages[: -(-length // size) - base]
        )
        upper.used = node.used
        parent.children[upper.tokens[0]] = upper
        lower_pages = node.pages[length // size - base :]
        # a page that the cut runs through has two holders now
        both = len(upper.pages) + len(lower_pages) - len(node.pages)
        upper.near, node.near = (
            node.near.intersection(upper.pages),
            node.near.intersection(lower_pages),
        )
        if both:
            self._hold(lower_pages[:1])
            if lower_pages[0] in node.near:
                node.near.remove(lower_pages[0])
                self._hold_near(node, lower_pages[:1])
        node.parent, node.start, node.tokens, node.pages = (
            upper,
            length,
            node.tokens[cut:],
            lower_pages,
        )
        upper.children[node.tokens[0]] = node
        for position in [p for p in node.checkpoints if p <= length]:
            upper.checkpoints[position] = node.checkpoints.pop(position)
        return upper

    def _hold(self, pages: Sequence[int]) -> None:
        for page in pages:
            self.pool.share(page)
            self._shares[page] = self._shares.get(page, 0) + 1

    def _held_near(self, pages: Sequence[int]) -> list[int]:
        """Those of the pages whose near part has an owner."""
        pool = self.pool
        return [page for page in pages if pool.near_owners(page)] if pool.window else []

    def _hold_near(self, node: _Node, pages: Sequence[int]) -> None:
        self.pool.share_near(pages)
        if self.pool.window:
            node.near.update(pages)
            for page in pages:
                self._near[page] = self._near.get(page, 0) + 1

    def _free_near(self, node: _Node, pages: Sequence[int]) -> None:
        node.near.difference_update(pages)
        for page in pages:
            self._near[page] -= 1
            if not self._near[page]:
                del self._near[page]
        self.pool.free_near(pages)

    def _windowed(self, pages: list[int], length: int) -> int:
        """The longest part of `length` positions in these pages whose window is there."""
        pool = self.pool
        at = -(-length // pool.page_size) - 1
        while at >= 0 and (at + 1) * pool.page_size > length - pool.window + 1:
            if not pool.near_owners(pages[at]):
                length = at * pool.page_size
            at -= 1
        return length

    def _shed(self, pages: list[int], length: int) -> int:
        """The first page of a prefix whose near part its taker gets: those that it looks at and,
        if they are there, those that it may go back to.
        """
        pool = self.pool
        if not pool.window:
            return 0
        shed = max(0, length - pool.window + 1) // pool.page_size
        least = max(0, length - pool.window + 1 - pool.slack) // pool.page_size
        while shed > least and pool.near_owners(pages[shed - 1]):
            shed -= 1
        return shed

    def _restore_near(
        self, path: list[_Node], pages: Sequence[int], shed: int, length: int
    ) -> None:
        """Take the near parts that nodes along a match lack from the pages of a sequence that has
        the same first `length` tokens, as far as there is space. Equal tokens have equal bytes, so
        a page may take another's place.
        """
        pool, size = self.pool, self.pool.page_size
        for node in path:
            end = node.start + len(node.tokens)
            for index, old in enumerate(node.pages):
                at = node.start // size + index
                filled = min(end, (at + 1) * size)
                if not shed <= at < len(pages) or filled > length or pool.near_owners(old):
                    continue
                new = pages[at]
                if not pool.near_owners(new):
                    continue
                extra = pool.near_bytes * (new not in self._near)
                extra += pool.bare_bytes * (new not in self._shares)
                if self.memory_bytes + extra > self.max_memory_bytes:
                    return
                node.pages[index] = new
                self._hold([new])
                self._hold_near(node, [new])
                self._let_go(old)

    def _inner(self) -> list[tuple[_Node, list[int]]]:
        """Nodes and those of their pages whose near parts are wholly behind the window of the next
        end or branch, least recently used first.
        """
        if not self._near:
            return []
        nodes = list(self._roots.values())
        for node in nodes:  # it grows meanwhile
            nodes.extend(node.children.values())
        size, found = self.pool.page_size, []
        ends: dict[_Node, int] = {}
        for node in reversed(nodes):
            only = next(iter(node.children.values())) if len(node.children) == 1 else None
            ends[node] = node.start + len(node.tokens) if only is None else ends[only]
            behind = (ends[node] - self.pool.window + 1) // size - node.start // size
            pages = [page for page in node.pages[: max(0, behind)] if page in node.near]
            if pages:
                found.append((node, pages))
        found.reverse()
        found.sort(key=lambda pair: pair[0].used)
        return found

    def _let_go(self, page: int) -> None:
        self._shares[page] -= 1
        if not self._shares[page]:
            del self._shares[page]
        self.pool.free(page)

    def _evict(self, max_bytes: int, max_entries: int, *, spare: _Node | None) -> bool:
        """Evict near parts inside nodes and the least recently used leaves until the limits hold;
        False if only `spare` could still be evicted.
        """
        if self.memory_bytes > max_bytes:
            for node, inner in self._inner():
                if self.memory_bytes <= max_bytes:
                    break
                self._free_near(node, inner)
        while self.memory_bytes > max_bytes or len(self._leaves) > max_entries:
            candidates = [leaf for leaf in self._leaves if leaf is not spare]
            if not candidates or max_bytes < 0 or max_entries < 0:
                return False
            self._drop(min(candidates, key=lambda leaf: leaf.used))
        return True

    def _drop(self, leaf: _Node) -> None:
        """Remove a leaf. A parent without other children becomes a leaf; a root without children is
        removed.
        """
        self.evictions += 1
        self.forgotten = max(self.forgotten, leaf.used)
        del self._leaves[leaf]
        self._free_near(leaf, list(leaf.near))
        for page in leaf.pages:
            self._let_go(page)
        parent = leaf.parent
        assert parent is not None  # a root is no leaf
        del parent.children[leaf.tokens[0]]
        if not parent.children:
            if parent.parent is not None:
                self._leaves[parent] = None
            else:
                self._roots = {key: root for key, root in self._roots.items() if root is not parent}
