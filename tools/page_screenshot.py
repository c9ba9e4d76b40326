#!/usr/bin/env python3
"""Makes the pictures of the page in docs: a server over the embedded model, a short chat in a
headless Chromium, the pointer over a token.

    tools/page_screenshot.py [FOLDER]        writes page.png and page-phone.png (default: docs)
"""

from __future__ import annotations

import subprocess
import sys
import time
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from browser import Browser, found, free_port  # noqa: E402

_ENDED = "return document.getElementById('stop').disabled && !!document.body.dataset.ready"


def main(folder: Path) -> None:
    """Write the pictures."""
    if not found():
        raise SystemExit(
            "page_screenshot: wanted chromium and chromedriver (Debian: chromium-driver)"
        )
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    server = subprocess.Popen(
        [sys.executable, "-m", "oxillama", "serve", "--port", str(port), "--no-log-requests"],
        stderr=subprocess.DEVNULL,
    )
    try:
        for _ in range(100):
            try:
                urllib.request.urlopen(f"{url}/health").close()
                break
            except OSError:
                time.sleep(0.1)
        with Browser() as browser:
            browser.open(url)
            browser.wait(_ENDED)
            browser.run(
                "document.getElementById('knob-seed').value = 7;"
                "document.getElementById('knob-max_tokens').value = 120;"
            )
            for text in ("Hello!", "Tell me a story about a fox."):
                browser.type("#message", text + "\ue007")
                time.sleep(0.3)
                browser.wait(_ENDED)
            browser.hover(".message:last-child .content span:nth-child(9)")
            time.sleep(0.2)
            (folder / "page.png").write_bytes(browser.screenshot())
            browser.resize(390, 780)
            browser.run("document.documentElement.dataset.theme = 'dark'")
            time.sleep(0.3)
            (folder / "page-phone.png").write_bytes(browser.screenshot())
            complaints = browser.log()
            if complaints:
                raise SystemExit(f"page_screenshot: the page complained: {complaints}")
    finally:
        server.terminate()
        server.wait(30)


if __name__ == "__main__":
    here = Path(__file__).resolve().parents[1] / "docs"
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else here)
