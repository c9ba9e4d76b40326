"""A slow recogniser that shares nothing with the machine: a set of explicit stacks of nodes,
stepped a byte at a time.
"""

from oxillama.grammar.nodes import CHOICE, CLASS, LITERAL, REPEAT, RULE, SEQUENCE


class Reference:
    """Follows every way of reading the text at once; `stacks` are tuples of nodes still to match,
    the next one last.
    """

    def __init__(self, rules):
        self.rules = rules
        self.stacks = self.close({((RULE, 0),)})

    def close(self, stacks):
        """Expands tops until each is a literal, or a set of byte sequences (a class)."""
        done, todo, seen = set(), list(stacks), set(stacks)
        while todo:
            stack = todo.pop()
            for follower in self.expand(stack):
                if follower is None:
                    done.add(stack)
                elif follower not in seen:
                    seen.add(follower)
                    todo.append(follower)
        return done

    def expand(self, stack):
        if not stack:
            return [None]
        rest, top = stack[:-1], stack[-1]
        kind = top[0]
        if kind == LITERAL:
            return [None] if top[1] else [rest]
        if kind == CLASS or kind == "utf8":
            return [None]
        if kind == SEQUENCE:
            return [rest + tuple(reversed(top[1]))]
        if kind == CHOICE:
            return [rest + (part,) for part in top[1]]
        if kind == RULE:
            return [rest + (self.rules[top[1]],)]
        assert kind == REPEAT
        _, body, least, most = top
        out = [rest] if least == 0 else []
        if most != 0:
            out.append(
                rest + ((REPEAT, body, max(least - 1, 0), most - 1 if most > 0 else most), body)
            )
        return out

    def step(self, byte):
        """Consumes a byte; False (nothing follows) leaves no stacks."""
        out = set()
        for stack in self.stacks:
            if not stack:
                continue
            rest, top = stack[:-1], stack[-1]
            if top[0] == LITERAL:
                if top[1][0] == byte:
                    out.add(rest + ((LITERAL, top[1][1:]),))
            elif top[0] == "utf8":
                if 0x80 <= byte < 0xC0:
                    self.partial(out, rest, top[1] + bytes([byte]), top[2], top[3])
            elif byte < 0x80:
                if any(low <= byte <= high for low, high in top[1]):
                    out.add(rest)
            elif 0xC2 <= byte <= 0xF4:
                self.partial(
                    out, rest, bytes([byte]), 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4, top[1]
                )
        self.stacks = self.close(out)
        return bool(self.stacks)

    def partial(self, out, rest, data, length, ranges):
        """Keeps a cut character if some code point of the class completes it."""
        shift = 6 * (length - len(data))
        value = data[0] & (0xFF >> (length + 1))
        for byte in data[1:]:
            value = value << 6 | byte & 0x3F
        low, high = value << shift, (value + 1 << shift) - 1
        low = max(low, (0, 0, 0x80, 0x800, 0x10000)[length])
        if low <= high and any(a <= high and low <= b for a, b in ranges):
            out.add(rest + (("utf8", data, length, ranges),) if shift else rest)

    @property
    def complete(self):
        return () in self.stacks


def matches(rules, data):
    reference = Reference(rules)
    return all(reference.step(byte) for byte in data) and reference.complete
