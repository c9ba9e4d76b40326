"""What looking up candidates needs for every token: the costs of steps by their rows, and an index of texts.

`oxillama/speculative/costs.py` and `oxillama/speculative/lookup.py` say what both are for.
"""
from collections import OrderedDict

cimport cython
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc

cdef enum:
    MOST_ROWS = 128         # of a step that is learned from
    DOUBTED = 256           # measured steps after which a point that was not measured again is taken for less
    MOST_COUNTED = 10       # measurements; a new one counts as one of so many
    RUNS = 3                # lengths of runs that are found
    SHORTEST = 2            # the least of them
    LONGEST = 32            # tokens of a run that are compared
    LENGTHS = 5             # classes of runs by length
    KINDS = 10              # of runs: by length, in the text itself and in another
    MOST_OFFERED = 64       # candidates of a step
    FEWEST_SLOTS = 1 << 10
    LONGEST_REST = 7        # steps without a look
    OVERLAP = 32            # tokens kept of a beginning that another text has too

cdef int64_t[RUNS] RUN
RUN[:] = [8, 4, SHORTEST]

cdef double LEAST_GAIN = 0.1        # tokens of a sequence, beyond those of plain steps of the same time; below it none are run
cdef double ASSUMED_SLOPE = 0.1     # of a plain step, for each further row, before one was measured
cdef double LOOK = 2e-6             # seconds that a look takes between two steps of a small model, whose data fill the caches
cdef double SHARE = 0.003           # of a step's time that looks may take
cdef double KEPT = 0.95             # of earlier verdicts at each new one


cdef class StepCosts:
    """Seconds of a step by rows: measured points, straight lines between, the last slope beyond; with one point, a tenth of it
    for each further row. Beyond the first point no step takes longer than one of more rows. Points that `record` has
    not measured for 256 recorded steps go half-way back to that tenth, so that they are measured again some time."""
    cdef double unit                        # seconds, by which all points change together
    cdef double[MOST_ROWS + 1] points, filled   # in units
    cdef int[MOST_ROWS + 1] counts
    cdef int64_t[MOST_ROWS + 1] newest      # the step that measured it last
    cdef int64_t steps
    cdef int first                          # point, 0 before any

    def __cinit__(self, points=None):
        self.unit = 1
        for rows, seconds in (points or {}).items():
            self.points[<int>rows] = seconds
            self.counts[<int>rows] = 1
        self.fill()

    def __bool__(self):
        """Whether any step was measured."""
        return self.first > 0

    def __call__(self, int64_t rows):
        """Seconds of a step with this many rows."""
        return self.at(rows)

    def observe(self, int64_t rows, double seconds):
        """Learn from a step. The first ones with its number of rows change the estimate most; one that was delayed counts as at
        most twice its estimate."""
        if not 0 < rows <= MOST_ROWS:
            return
        seconds /= self.unit
        if not self.counts[rows]:
            self.counts[rows] = 1 if self.first else 0
            self.points[rows] = self.filled[rows] if self.first else seconds
        self.counts[rows] = min(self.counts[rows] + 1, MOST_COUNTED)
        self.points[rows] += (min(seconds, 2 * self.points[rows]) - self.points[rows]) / self.counts[rows]
        self.newest[rows] = self.steps
        self.fill()

    def scale(self, int64_t rows, double seconds):
        """Learn from a plain step with this many rows: all estimates change in its proportion, as they do on a machine that
        becomes busier or with a text that becomes longer."""
        if not 0 < rows <= MOST_ROWS or not self.counts[rows]:
            self.observe(rows, seconds)
            return
        self.unit *= 1 + (min(max(seconds / (self.unit * self.points[rows]), 0.5), 2.0) - 1) / MOST_COUNTED
        self.newest[rows] = self.steps

    def record(self, int64_t sequences, int64_t rows, double seconds):
        """Learn from a step of this many sequences; its further rows were candidates."""
        self.steps += 1
        if self.steps % (DOUBTED // 4) == 0:
            self.doubt()
        if rows == sequences:
            self.scale(rows, seconds)
        elif self.first:            # the first step with candidates is compared with a plain one
            self.observe(rows, seconds)

    def best(self, chances, *, int64_t rows=1, int64_t sequences=1, double each=0.0, double once=0.0):
        """How many candidates to add to a step that holds `rows` rows of `sequences` sequences without them, 0 where none pay.

        chances: of each candidate, to be accepted where those before it are. each: seconds that drafting one takes; once: that
        drafting any takes.
        """
        cdef double[MOST_OFFERED] given
        cdef int count = <int>min(len(chances), MOST_OFFERED), i
        for i in range(count):
            given[i] = chances[i]
        return self.worthwhile(given, count, rows, sequences, each, once)

    cdef double at(self, int64_t rows) noexcept:
        cdef double beyond = 0
        if rows > MOST_ROWS:
            beyond = (rows - MOST_ROWS) * (self.filled[MOST_ROWS] - self.filled[MOST_ROWS - 1])
            rows = MOST_ROWS
        return self.unit * (self.filled[rows] + beyond)

    cdef int worthwhile(self, const double *chances, int count, int64_t rows, int64_t sequences, double each, double once) noexcept:
        cdef double tokens = <double>sequences, chance = 1, rate, best = (tokens + LEAST_GAIN) / self.at(rows)
        cdef int i, found = 0
        for i in range(count):
            chance *= chances[i]
            tokens += chance
            rate = tokens / (self.at(rows + i + 1) + once + each * (i + 1))
            if rate > best:
                best = rate
                found = i + 1
        return found

    cdef void doubt(self) noexcept:
        cdef double assumed
        cdef int i
        for i in range(self.first + 1, MOST_ROWS + 1):
            if self.counts[i] and self.newest[i] < self.steps - DOUBTED:
                assumed = self.points[self.first] * (1 + ASSUMED_SLOPE * (i - self.first))
                self.points[i] = 0.5 * (self.points[i] + assumed)
                self.counts[i] = 1
                self.newest[i] = self.steps
        self.fill()

    cdef void fill(self) noexcept:
        """Draws the lines between the points, those from points that later ones contradict from the later ones."""
        cdef double[MOST_ROWS + 1] level
        cdef double slope = 0, lowest = 1e300
        cdef int i, last = 0
        self.first = 0
        for i in range(MOST_ROWS, 0, -1):
            if self.counts[i]:
                self.first = i
                lowest = min(lowest, self.points[i])
                level[i] = lowest
        if not self.first:
            return
        level[self.first] = self.points[self.first]
        slope = ASSUMED_SLOPE * level[self.first]
        for i in range(self.first + 1, MOST_ROWS + 1):
            if self.counts[i]:
                last = last or self.first
                slope = (level[i] - level[last]) / (i - last)
                self.line(last, i, level[last], slope, level[self.first])
                last = i
        last = last or self.first
        self.line(last, MOST_ROWS + 1, level[last], slope, level[self.first] if last > self.first else 0)
        # before the first point: along the slope that follows it
        slope = self.filled[min(self.first + 1, MOST_ROWS)] - self.filled[self.first]
        for i in range(self.first):
            self.filled[i] = max(self.filled[self.first] - slope * (self.first - i), 0.5 * self.filled[self.first])

    cdef void line(self, int start, int end, double level, double slope, double least) noexcept:
        cdef int i
        for i in range(start, end):
            self.filled[i] = max(level + slope * (i - start), least)


cdef class IndexedText


cdef uint64_t hashed(const int32_t *end, int64_t length) noexcept:
    """Of the `length` tokens before `end`."""
    cdef uint64_t h = <uint64_t>length
    cdef int64_t i
    for i in range(1, length + 1):
        h = (h ^ <uint32_t>end[-i]) * 0x9e3779b97f4a7c15ULL
        h ^= h >> 29
    return h


cdef class TextIndex:
    """Where the runs of 2, 4 and 8 tokens of several texts occurred last, and what followed them. It holds at most `most` tokens;
    the text opened longest ago goes first, and one that is alone and longer begins anew. While it holds more than `most_texts` texts,
    closed ones go too: each takes memory of its own, however short it is."""
    cdef int64_t most, most_texts, held, slots
    cdef int64_t *table             # of each length of runs: number << 40 | position of what followed, 0 for none
    cdef list texts, free_numbers
    cdef object order

    def __cinit__(self, int64_t most=1 << 17, int64_t most_texts=1 << 12):
        self.most = most
        self.most_texts = most_texts
        self.texts = [None]             # by number, from 1: no entry of the table is 0
        self.free_numbers = []
        self.order = OrderedDict()      # number -> None, the text opened longest ago first
        self.resize(FEWEST_SLOTS)

    def __dealloc__(self):
        free(self.table)

    @property
    def tokens(self):
        """The number of tokens that it holds."""
        return self.held

    cdef IndexedText found(self, int r, const int32_t *end, int64_t *place, int64_t own):
        """The text where the run before `end`, of the r-th length, was last followed by something, and where; None. own: what to
        find there from now on, 0 for no change."""
        cdef int64_t slot = r * self.slots + (hashed(end, RUN[r]) & (self.slots - 1))
        cdef int64_t entry = self.table[slot]
        cdef int64_t at = entry & ((<int64_t>1 << 40) - 1)
        cdef IndexedText text
        cdef int i
        if own:
            self.table[slot] = own
        if not entry:
            return None
        text = self.texts[entry >> 40]
        if text is None or not RUN[r] <= at < text.length:      # it was cut or removed since
            return None
        for i in range(1, RUN[r] + 1):
            if text.tokens[at - i] != end[-i]:
                return None
        place[0] = at
        return text

    cdef int resize(self, int64_t slots) except -1:
        """A table of this many slots for each length of runs, filled from the texts."""
        cdef IndexedText text
        table = <int64_t *>calloc(RUNS * slots, sizeof(int64_t))
        if table == NULL:
            raise MemoryError("index of texts")
        free(self.table)
        self.table = table
        self.slots = slots
        for number in self.order:
            text = self.texts[number]
            for at in range(SHORTEST, text.length + 1):
                text.add_runs(at)
        return 0

    cdef int evict(self) except -1:
        """Drops texts, the one opened longest ago first, until one more token fits. Of too many texts it drops the first,
        or passes over it while it is open: every text that is kept has called this, so that they cannot grow more."""
        cdef IndexedText text
        cdef bint many = len(self.order) > self.most_texts
        while many or self.held >= self.most:
            number = next(iter(self.order))
            text = self.texts[number]
            if text.closed or not many:
                self.held -= text.length
                text.start += text.length
                text.length = 0
            if text.closed:
                self.remove(text)
            else:
                self.order.move_to_end(number)
            many = False
        if 2 * self.held >= self.slots and self.slots < 2 * self.most:
            self.resize(2 * self.slots)
        return 0

    cdef int remove(self, IndexedText text) except -1:
        del self.order[text.number]
        self.texts[text.number] = None
        self.free_numbers.append(text.number)
        return 0


cdef class IndexedText:
    """One text of an index: the tokens of a session, as far as `learn` has read them.

    chances: the share of accepted candidates to begin with, for runs of 2, 3-4, 5-8, 9-16, and 17 and more tokens, first those found
    in the text itself, then those in others.
    """
    cdef TextIndex index
    cdef int32_t *tokens
    cdef int64_t length, capacity
    cdef int64_t start              # position in the session of the first token kept
    cdef int64_t number
    cdef bint closed
    cdef IndexedText source         # where the longest run at the end was found,
    cdef int64_t place, run         # where it is followed there, and its length; 0 for none
    cdef double[KINDS] right, judged
    cdef public double streak       # rises with predictions that come true, falls with others, 0 at least

    def __cinit__(self, TextIndex index not None, chances):
        cdef int kind
        for kind in range(KINDS):
            self.right[kind] = chances[kind]
            self.judged[kind] = 1
        self.index = index
        with cython.critical_section(index):
            if index.free_numbers:
                self.number = index.free_numbers.pop()
                index.texts[self.number] = self
            else:
                self.number = len(index.texts)
                index.texts.append(self)
            index.order[self.number] = None

    def __dealloc__(self):
        free(self.tokens)

    @property
    def chances(self):
        """The share of candidates that were accepted, the newest counting most, for each kind of run."""
        return [self.right[kind] / self.judged[kind] for kind in range(KINDS)]

    def learn(self, list tokens not None):
        """Read the tokens of the session that are new. Of those that come one by one it is learned how often the token that
        followed before follows again, whether or not it was a candidate."""
        with cython.critical_section(self.index):
            self.read(tokens)

    cdef int promising(self, list tokens, StepCosts costs, int64_t sequences, int most) except -1:
        """`learn`, then the number of candidates to add to a step of this many sequences: 0 where nothing is found or
        none pay, `most` at most. costs: None where all pay."""
        cdef double[MOST_OFFERED] chances
        cdef int count
        with cython.critical_section(self.index):
            self.read(tokens)
            if not self.run or costs is not None and not costs.first:
                return 0
            count = self.expected(chances, most)
            return count if costs is None else costs.worthwhile(chances, count, sequences, sequences, 0, 0)

    def offer(self, int most):
        """(up to `most` candidates, the chance of each to be accepted where those before it are)."""
        cdef double[MOST_OFFERED] chances
        cdef int count, i
        cdef int64_t at
        with cython.critical_section(self.index):
            if not self.run:
                return [], []
            count = self.expected(chances, most)
            out = []
            for i in range(count):
                at = self.place + i
                while at >= self.source.length:     # the run reaches the end: the text goes in a circle
                    at -= self.length - self.place
                out.append(self.source.tokens[at])
            return out, [chances[i] for i in range(count)]

    def close(self):
        """No more tokens will come; the text stays until its space is needed."""
        with cython.critical_section(self.index):
            self.closed = True
            self.source = None
            self.run = 0
            if not self.length:
                self.index.remove(self)
            elif self.length < self.capacity:       # which grows by doubling
                cut = <int32_t *>realloc(self.tokens, self.length * sizeof(int32_t))
                if cut != NULL:
                    self.tokens = cut
                    self.capacity = self.length

    cdef int read(self, list tokens) except -1:
        cdef int64_t size = len(tokens), at, seen = self.start + self.length
        cdef bint first
        if size < seen:             # it was cut
            self.cut(max(size - self.start, 0))
            seen = self.start + self.length
        if self.length and <int32_t>tokens[seen - 1] != self.tokens[self.length - 1] or size < seen:
            self.cut(0)
            self.start = seen = 0
        if size == seen:
            return 0
        first = seen == 0
        if first:
            seen = self.start = self.known_beginning(tokens)
        for at in range(seen, size):
            if self.run:
                self.judge(tokens[at])
            self.append(tokens[at])
            if not first or at == size - 1:
                self.find()
            else:
                self.add_runs(self.length)
        return 0

    cdef void cut(self, int64_t length) noexcept:
        self.index.held -= self.length - length
        self.length = length
        self.run = 0
        self.source = None

    cdef int64_t known_beginning(self, list tokens) except -1:
        """How many of the first tokens need not be stored, because another text holds them; the last of those are."""
        cdef int32_t[2 * OVERLAP] head
        cdef int64_t at, size = len(tokens)
        cdef int i
        cdef IndexedText text
        if size <= 2 * OVERLAP:
            return 0
        for i in range(2 * OVERLAP):
            head[i] = tokens[i]
        text = self.index.found(0, head + 2 * OVERLAP, &at, 0)
        if text is None or at < 2 * OVERLAP:
            return 0
        for i in range(2 * OVERLAP):
            if text.tokens[at - 2 * OVERLAP + i] != head[i]:
                return 0
        i = 0
        while at + i < text.length and 2 * OVERLAP + i < size and text.tokens[at + i] == <int32_t>tokens[2 * OVERLAP + i]:
            i += 1
        return OVERLAP + i

    cdef int append(self, int32_t token) except -1:
        cdef int64_t capacity
        self.index.evict()
        if self.length == self.capacity:
            capacity = 2 * self.capacity + 64
            grown = <int32_t *>realloc(self.tokens, capacity * sizeof(int32_t))
            if grown == NULL:
                raise MemoryError("index of texts")
            self.tokens = grown
            self.capacity = capacity
        self.tokens[self.length] = token
        self.length += 1
        self.index.held += 1
        return 0

    cdef void add_runs(self, int64_t at) noexcept:
        """What follows the runs that end before `at` comes there, as soon as it does."""
        cdef TextIndex index = self.index
        cdef int r
        for r in range(RUNS):
            if at >= RUN[r]:
                index.table[r * index.slots + (hashed(self.tokens + at, RUN[r]) & (index.slots - 1))] = self.number << 40 | at

    cdef int find(self) except -1:
        """Looks for the longest run at the end that occurred before, and does `add_runs`."""
        cdef IndexedText text
        cdef int64_t at, most, run = 0
        cdef int r
        for r in range(RUNS):
            if self.length < RUN[r]:
                continue
            text = self.index.found(r, self.tokens + self.length, &at, self.number << 40 | self.length)
            if text is None or run:
                continue
            run = RUN[r]
            most = min(LONGEST, min(at, self.length))
            while run < most and text.tokens[at - 1 - run] == self.tokens[self.length - 1 - run]:
                run += 1
            self.source = text
            self.place = at
        self.run = run
        return 0

    cdef int kind(self, int64_t run) noexcept:
        cdef int longer = (run > 2) + (run > 4) + (run > 8) + (run > 16)
        return longer if self.source is self else LENGTHS + longer

    cdef void judge(self, int32_t token) noexcept:
        """Compares the token that came with the one that followed before."""
        cdef int kind
        cdef bint right
        if self.place >= self.source.length:        # its space was needed
            return
        kind = self.kind(self.run)
        right = self.source.tokens[self.place] == token
        self.right[kind] = KEPT * self.right[kind] + right
        self.judged[kind] = KEPT * self.judged[kind] + 1
        self.streak = max(self.streak + (0.5 if right else -0.5), 0)

    cdef int expected(self, double *chances, int most) noexcept:
        """The number of candidates there are, `most` at most, with their chances: those accepted make the run longer."""
        cdef int64_t count = min(most, MOST_OFFERED)
        cdef int i, kind
        if self.source is not self:
            count = min(count, max(self.source.length - self.place, 0))
        elif self.place >= self.length:
            count = 0
        for i in range(count):
            kind = self.kind(self.run + i)
            chances[i] = self.right[kind] / self.judged[kind]
        return <int>count


cdef class Watcher:
    """Looks for candidates after the tokens of a session, in `text`, for at most `most` that pay by `costs` (None: all do).

    Where there are some, it calls owner.found(request, sequences, how many), which returns whether they are run. Where nothing is
    found and steps are so short that looking would take more than `SHARE` of them, it sets owner.rest to the number of steps until
    it looks again; it then reads their tokens at once. alone: not while other sequences decode.
    """
    cdef IndexedText text
    cdef StepCosts costs
    cdef int most
    cdef bint alone
    cdef object owner
    cdef readonly int64_t fallbacks     # steps without candidates, of which owner.rest are still to come
    cdef readonly double since          # when the first token was drawn, 0 before it

    def __cinit__(self, IndexedText text not None, StepCosts costs, int most, owner, *, bint alone=False):
        self.text = text
        self.costs = costs
        self.most = most
        self.owner = owner
        self.alone = alone

    def wants(self, request, int64_t sequences):
        """After a token. False: nothing has to be asked for candidates."""
        cdef int count
        cdef int64_t rest
        if self.since == 0:
            self.since = request.first_at
        if self.alone and sequences > 1:
            self.owner.rest = LONGEST_REST
            self.fallbacks += 1 + LONGEST_REST
            return False
        count = self.text.promising(request.session.tokens, self.costs, sequences, self.most)
        if count == 0 or not self.owner.found(request, sequences, count):
            self.fallbacks += 1
            if self.text.run == 0 and self.costs is not None and self.costs.first:
                rest = <int64_t>(sequences * LOOK / (SHARE * self.costs.at(sequences)))
                if rest > 0:
                    rest = min(rest, LONGEST_REST)
                    self.owner.rest = rest
                    self.fallbacks += rest
        return False

    def close(self):
        """Look no more."""
        self.owner = None
