"""Stop strings: never shown, not even their beginning, however the text is cut."""

from hypothesis import given
from hypothesis import strategies as st

from oxillama.engine.output import StopText


def run(stops, pieces):
    """(all text shown, whether it stopped)."""
    stop, out = StopText(stops), []
    for piece in pieces:
        shown, stopped = stop.feed(piece)
        out.append(shown)
        if stopped:
            return "".join(out), True
    return "".join(out) + stop.flush(), False


def test_a_beginning_is_held_back_until_it_cannot_be():
    stop = StopText(["END"])
    assert stop.feed("abE") == ("ab", False)
    assert stop.feed("N") == ("", False)
    assert stop.feed("x") == ("ENx", False)
    assert stop.feed("yEN") == ("y", False)
    assert stop.feed("D more") == ("", True)


def test_text_flushed_still_begins_a_stop():
    stop = StopText(["END"])
    assert stop.feed("xEN") == ("x", False)
    assert stop.flush() == "EN"
    assert stop.feed("D") == ("", True)


def test_forks_go_their_own_ways():
    stop = StopText(["END"])
    stop.feed("E")
    twin = stop.fork()
    assert stop.feed("ND") == ("", True) and twin.feed("x") == ("Ex", False)


def test_other_stops_go_on_with_the_same_text():
    stop = StopText(["END", "abcd"])
    assert stop.feed("x abcEN") == ("x abc", False)
    assert stop.fork(["END"]).feed("D") == ("", True)
    assert stop.fork(["END", "bcE"]).feed("D") == ("", True)  # what is past was no stop
    assert stop.fork(["N!"]).feed("?") == ("EN?", False)
    assert stop.fork([]).feed("D") == ("END", False)


def test_what_is_held_back_comes_before_text_in_which_no_stop_counts():
    stop = StopText(["END"])
    stop.feed("EN")
    assert stop.skip("D") == "END" and stop.feed("D") == ("D", False)


@given(
    st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3),
    st.lists(st.text("ab", max_size=3), max_size=12),
)
def test_however_cut_the_text_ends_where_the_earliest_stop_begins(stops, pieces):
    shown, stopped = run(stops, pieces)
    whole = ""
    # the earliest of the stops that are complete first
    for piece in pieces:
        whole += piece
        found = [whole.find(stop) for stop in stops if stop in whole]
        if found:
            assert stopped and shown == whole[: min(found)]
            return
    assert not stopped and shown == whole


def test_a_stop_is_compared_with_what_may_be_its_beginning_alone():
    compared = 0

    class Counted(str):
        __slots__ = ()

        def __getitem__(self, part):
            nonlocal compared
            compared += 1
            return str.__getitem__(self, part)

    stop = StopText([Counted("b" + "a" * 999)])
    for _ in range(1000):
        assert stop.feed("ca") == ("ca", False)
    assert compared <= 3 * 1000  # not a thousand for each piece
    stop.feed("b")
    for _ in range(998):
        assert stop.feed("a") == ("", False)
    assert stop.fork().feed("a") == ("", True)
    assert stop.feed("c") == ("b" + "a" * 998 + "c", False)


@given(st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=3), st.text("abc"))
def test_a_filter_goes_on_from_its_tail_as_from_itself(stops, text):
    whole = StopText(stops)
    for letter in text:
        other = StopText(stops, whole.tail, whole.held)
        made = whole.feed(letter)
        assert other.feed(letter) == made
        if made[1]:
            break
