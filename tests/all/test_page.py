"""The page in a real headless Chromium (Debian's packages chromium and chromium-driver)."""

import importlib
import sys
from pathlib import Path

import pytest

from tests.all.conftest import Process

TOOLS = Path(__file__).resolve().parents[2] / "tools"
READY = "return document.body.dataset.ready === 'true' && document.getElementById('stop').disabled"
SHOWN = "const e = document.getElementById('error'); return !e.hidden && e.textContent"
TEXT = "return [...document.querySelectorAll('.message .content')].map((e) => e.textContent)"
ENTER = "\ue007"


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    """A server of its own: the page shows what others saved."""
    made = Process("--sessions-dir", str(tmp_path_factory.mktemp("sessions")))
    yield made.url
    made.stop()


@pytest.fixture(scope="module")
def window(url):
    sys.path.insert(0, str(TOOLS))
    try:
        browser = importlib.import_module("browser")
    finally:
        sys.path.remove(str(TOOLS))
    assert browser.found(), "wanted chromium and chromedriver: apt-get install chromium-driver"
    with browser.Browser() as made:
        made.open(url)
        made.wait(READY)
        yield made
        assert made.log() == []


def send(window, text):
    count = len(window.run(TEXT))
    window.type("#message", text + ENTER)
    window.wait(f"return document.querySelectorAll('.message').length === {count + 2}")
    window.wait(READY)
    return window.run(TEXT)


def fresh(window, **knobs):
    window.click("#new")
    for name, value in {"max_tokens": 12, "seed": 3, **knobs}.items():
        window.run(
            "const e = document.getElementById('knob-' + arguments[0]); e.value = arguments[1];"
            "e.dispatchEvent(new Event('change'))",
            name,
            value,
        )


def test_a_chat_streams_and_counts(window):
    fresh(window)
    first = send(window, "Tell me a story")
    assert first[0] == "Tell me a story" and first[1]
    assert "tokens/s" in window.run("return document.getElementById('numbers').textContent")
    used = window.run("return document.getElementById('context-text').textContent")
    assert used.endswith("of 1024") and int(used.split()[0]) > 12


def test_each_token_shows_its_probability(window):
    fresh(window)
    send(window, "Tell me a story")
    spans = window.run("return document.querySelectorAll('.assistant .content span').length")
    assert spans == 12
    window.hover(".assistant .content span:nth-child(3)")
    window.wait("return !document.getElementById('token').hidden")
    rows = window.run("return document.querySelectorAll('#token tr').length")
    assert rows >= 5
    window.run("document.querySelector('.assistant .content').focus()")
    window.type(".assistant .content", "\ue014\ue014")  # right, right
    assert "percent" in window.run("return document.getElementById('state').textContent")


def test_an_empty_field_shows_the_default(window):
    fresh(window)
    names = ("temperature", "top_k", "top_p", "repeat_penalty", "seed")
    shown = window.run(
        "return arguments[0].map((name) => document.getElementById('knob-' + name))"
        ".map((knob) => [knob.value, knob.placeholder])",
        names,
    )
    assert shown == [["", "0.7"], ["", "40"], ["", "0.9"], ["", "1"], ["3", "free"]]


def test_what_the_server_refuses_is_told(window):
    fresh(window, temperature=-3)
    window.type("#message", "Hi" + ENTER)
    assert window.wait(SHOWN).startswith("temperature: found -3")
    assert ["400" in each for each in window.log()] == [True]
    fresh(window, temperature="")
    assert send(window, "Hi")[1]
    assert window.run(SHOWN) is False


def test_retry_and_edit(window):
    fresh(window)
    before = send(window, "Tell me a story")
    window.click(".assistant h3 button")
    window.wait(READY)
    assert window.run(TEXT) == before
    window.click(".user h3 button")
    window.run("document.querySelector('.user textarea').value = 'Hello!'")
    window.click(".user .row button")
    window.wait("return document.querySelector('.user .content').textContent === 'Hello!'")
    window.wait(READY)
    after = window.run(TEXT)
    assert len(after) == 2 and after[1] != before[1]


def test_an_edited_message_keeps_its_image(window, url):
    window.run(
        "const image = {name: 'a.png', url: 'data:image/png;base64,AA=='};"
        "const messages = [{role: 'user', content: 'What is it?', image}];"
        "const id = `${Date.now()}-seen`;"
        "const seen = {id, title: 'Seen', system: '', messages, session: null, used: 0};"
        "localStorage.setItem(`oxillama/${id}`, JSON.stringify(seen));"
        "sessionStorage.setItem('oxillama', id)"
    )
    window.open(url)
    window.wait(READY)
    window.click(".user h3 button")
    window.click(".user .row button")
    assert "this model sees no images" in window.wait(SHOWN)
    assert "Image: a.png" in window.run("return document.querySelector('.user').textContent")
    assert ["400" in each for each in window.log()] == [True]


def long_answers(window):
    """Answers that are not over before a click."""
    fresh(window, max_tokens=900, temperature=2)
    window.run(
        "document.getElementById('schema-on').checked || "
        "document.getElementById('schema-on').click()"
    )
    window.run(
        "const e = document.getElementById('schema');"
        "e.value = JSON.stringify({type: 'string', minLength: 4000});"
        "e.dispatchEvent(new Event('change'))"
    )


def test_retry_while_an_answer_streams(window):
    long_answers(window)
    window.run("document.getElementById('message').value = 'Go'")
    found = window.run(
        "const spans = () => document.querySelectorAll('.assistant .content span').length;"
        # no timer, which might first run when all has come
        "const until = (done) => new Promise((go) => {"
        " const observer = new MutationObserver(() => {"
        "  if (done()) { observer.disconnect(); go(); } });"
        " observer.observe(document.getElementById('log'), {childList: true, subtree: true}); });"
        "const disabled = (id) => document.getElementById(id).disabled;"
        "return (async () => {"
        " document.getElementById('send').click();"
        " await until(() => spans() > 20);"
        " document.querySelector('.assistant h3 button').click();"
        " await until(() => spans() > 40);"
        " const messages = document.querySelectorAll('.message').length;"
        " return [disabled('stop'), disabled('send'), messages];"
        "})()"
    )
    assert found == [False, True, 2]
    window.click("#stop")
    window.wait(READY)
    window.click("#schema-on")


def test_stop(window):
    long_answers(window)
    window.run(  # the answer would be over before a click from here
        "const timer = setInterval(() => {"
        " if (document.querySelectorAll('.assistant .content span').length < 4) return;"
        " clearInterval(timer); document.getElementById('stop').click(); }, 1)"
    )
    window.type("#message", "Go" + ENTER)
    window.wait("return document.querySelectorAll('.assistant .content span').length > 3")
    window.wait(READY)
    assert window.run("return document.getElementById('state').textContent") == "Stopped"
    window.click("#schema-on")


def test_json_under_a_schema(window):
    fresh(window, max_tokens=100)
    window.click("#schema-on")
    window.run(
        "const e = document.getElementById('schema');"
        "e.value = JSON.stringify({type: 'object', properties: {a: {enum: [1, 2]}},"
        " required: ['a'], additionalProperties: false});"
        "e.dispatchEvent(new Event('change'))"
    )
    assert send(window, "Go")[1] in ('{"a":1}', '{"a":2}')
    window.click("#schema-on")


def test_conversations_stay_in_the_browser(window, url):
    fresh(window)
    text = send(window, "Tell me a story")
    window.click("#new")
    assert window.run(TEXT) == []  # and nothing to store
    window.open(url)
    window.wait(READY)
    assert window.run(TEXT) == text


TITLES = (
    "const found = document.querySelectorAll('#conversations li button:first-child');"
    "return [...found].map((e) => e.textContent).slice(0, arguments[0])"
)


def test_tabs_keep_what_others_wrote(window, url):
    fresh(window)
    mine = send(window, "Tell me a story")
    with window.tab(url):
        window.wait(READY)
        assert window.run(TITLES, 1) == ["Tell me a story"]
        fresh(window)
        theirs = send(window, "Who are you?")
        window.run("document.getElementById('system').value = 'Be kind'")
        window.run("document.getElementById('system').dispatchEvent(new Event('input'))")
        names = window.run(TITLES, 2)
    assert names == ["Who are you?", "Tell me a story"]
    assert window.run(TITLES, 2) == names and window.run(TEXT) == mine
    assert len(send(window, "Go on")) == 4  # writes this tab's conversation, not the other's
    window.open(url)
    window.wait(READY)
    assert window.run(TITLES, 2) == names and window.run(TEXT)[:2] == mine
    window.click("#conversations li button")
    assert window.run(TEXT) == theirs
    assert window.run("return document.getElementById('system').value") == "Be kind"
    with window.tab(url):
        window.wait(READY)
        window.click("#conversations li button:last-child")
    assert window.run(TITLES, 1) == ["Tell me a story"] and window.run(TEXT)[:2] == mine


def test_a_session_is_saved_and_restored(window):
    fresh(window)
    text = send(window, "Tell me a story")
    window.run("document.getElementById('session-name').value = 'page'")
    window.click("#save")
    window.wait("return document.getElementById('state').textContent === 'Saved page'")
    window.click("#new")
    window.click("#sessions li button")
    window.wait("return document.getElementById('state').textContent === 'Restored page'")
    assert window.run(TEXT) == text
    assert len(send(window, "Go on")) == 4


def test_phone_width_and_dark(window):
    window.resize(390, 780)
    wide = window.run("return document.documentElement.scrollWidth")
    assert wide <= 390
    assert window.run("return getComputedStyle(document.getElementById('list')).display") == "none"
    window.click("#toggle-list")
    assert window.run("return getComputedStyle(document.getElementById('list')).display") == "block"
    window.click("#toggle-list")
    light = window.run("return getComputedStyle(document.body).backgroundColor")
    window.run(
        "const e = document.getElementById('theme'); e.value = 'dark';"
        "e.dispatchEvent(new Event('change'))"
    )
    assert window.run("return getComputedStyle(document.body).backgroundColor") != light
    window.resize(1280, 860)


ATTACH = (
    "const held = new DataTransfer();"
    "held.items.add(new File([new Uint8Array(arguments[1])], 'a.wav', {type: 'audio/wav'}));"
    "const input = document.getElementById(arguments[0]);"
    "input.files = held.files; input.dispatchEvent(new Event('change'))"
)
STORED = (
    "const {messages} = JSON.parse(localStorage.getItem(`oxillama/${sessionStorage.oxillama}`));"
    "return messages.map((each) => [each.content, each.audio ?? null])"
)


def test_a_file_that_is_refused_can_be_removed(window):
    fresh(window)
    window.run(ATTACH, "audio", 4)
    window.type("#message", "What is said?" + ENTER)
    shown = "const e = document.getElementById('error'); return !e.hidden && e.textContent"
    assert "audio" in window.wait(shown)
    assert window.log()
    url = "data:audio/wav;base64,AAAAAA=="
    assert window.run(STORED) == [["What is said?", {"name": "a.wav", "url": url}]]
    window.click(".attached button")
    assert window.run(STORED) == [["What is said?", None]]
    window.type("#message", "Go on" + ENTER)
    window.wait("return document.querySelectorAll('.assistant').length === 1")
    window.wait(READY)
    assert window.run(shown) is False


def test_a_large_file_is_not_stored(window, url):
    """The browser's storage has room for a few million characters alone."""
    fresh(window)
    window.run(ATTACH, "audio", 900_000)
    window.type("#message", "What is said?" + ENTER)  # the file may be read by then or not
    shown = "const e = document.getElementById('error'); return !e.hidden && e.textContent"
    assert "audio" in window.wait(shown)
    assert window.run(STORED) == [["What is said?", {"name": "a.wav"}]]
    window.open(url)
    window.wait(READY)
    assert "a.wav (too large to be stored)" in window.run(
        "return document.querySelector('.user').textContent"
    )
    window.type("#message", "Go on" + ENTER)
    assert window.wait(shown).startswith("a.wav is no longer here")
    assert window.log()
