"""The page: its files are this package's, and nothing in them comes from elsewhere."""

import re

from oxillama.server.page import FILES


def test_the_page_and_its_files_are_served(server):
    page = server.get("/")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    for name in FILES:
        answer = server.get(f"/static/{name}")
        assert answer.status_code == 200 and answer.content
    named = re.findall(r'(?:src|href)="([^#"]+)"', page.text)
    assert sorted(named) == ["static/icon.svg", "static/page.css", "static/page.js"]
    assert server.get("/static/app.py").status_code == 404


def test_the_page_works_below_a_path_of_a_proxy(server):
    """All that it names is relative to its own address."""
    script = server.get("/static/page.js").text
    asked = re.findall(r'(?:fetch|ask|post)\(["`]([^"`$]+)', script)
    assert len(asked) >= 9 and not any(each.startswith("/") for each in asked), asked


def test_nothing_is_inline_or_from_elsewhere(server):
    html = server.get("/").text
    assert "<style" not in html and " style=" not in html
    assert not re.search(r"<script(?![^>]*\bsrc=)", html)
    assert not re.search(r"\bon[a-z]+=", html)
    for name in FILES:
        text = server.get(f"/static/{name}").text.replace("http://www.w3.org/2000/svg", "")
        assert "http://" not in text and "https://" not in text, name


def test_every_control_has_a_label(server):
    html = server.get("/").text
    labelled = set(re.findall(r'<label[^>]* for="([^"]+)"', html))
    for tag in re.findall(r"<(?:input|select|textarea)[^>]*>", html):
        name = re.search(r'id="([^"]+)"', tag).group(1)
        inside = re.search(rf'<label[^>]*>(?:(?!</label>).)*id="{name}"', html, re.DOTALL)
        assert name in labelled or inside, name
    script = server.get("/static/page.js").text
    assert set(re.findall(r'by\("([a-z-]+)"\)', script)) <= set(re.findall(r'id="([^"]+)"', html))
