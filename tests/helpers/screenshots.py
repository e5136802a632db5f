"""The documents' pictures of the live page, taken of the demo.

    python -m tests.helpers.screenshots [--minutes 5.2] [--users 2000]

Once the charts are full, Chromium takes the pictures into `deploy/screenshots`.
"""

import argparse
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Final

from playwright.sync_api import Page, sync_playwright

from tests.helpers.tree import ROOT

FOLDER: Final = ROOT / "deploy/screenshots"
MOST_BYTES: Final = 150_000
# Scheme, width, height, and device pixels to one of ours.
LOOKS: Final = [
    ("light", "light", 1200, 860, 1.0),
    ("dark", "dark", 1200, 860, 1.0),
    ("narrow", "light", 390, 780, 1.75),
]


def take(address: str) -> Iterator[tuple[str, Page]]:
    """The page as each picture shows it."""
    arguments = ["--no-sandbox", "--disable-dev-shm-usage"]
    chromium = shutil.which("chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=arguments)

        def opened(scheme: str, width: int, height: int, scale: float) -> Page:
            page = browser.new_page(
                viewport={"width": width, "height": height},
                device_scale_factor=scale,
                color_scheme=scheme,  # type: ignore[arg-type]  # one of two
            )
            page.goto(address)
            page.locator("#link[data-state=live]").wait_for()
            page.locator("#dots .fired").first.wait_for(state="attached")
            return page

        for name, scheme, width, height, scale in LOOKS:
            page = opened(scheme, width, height, scale)
            yield name, page
            page.close()  # what nobody looks at takes no time from the sidecar
        asked = opened("light", 1200, 860, 1.0)
        silent = asked.locator("#records [data-reason=silence] a")
        silent.first.click()
        asked.locator("#explained .sentence").wait_for()
        asked.evaluate("document.querySelector('.vitals').scrollIntoView()")
        yield "questions", asked
        browser.close()


def main() -> int:
    """Take them; 1 if one is too large for a repository."""
    parser = argparse.ArgumentParser(prog="make screenshots")
    parser.add_argument("--minutes", type=float, default=5.2)
    parser.add_argument("--users", type=int, default=2_000)
    asked = parser.parse_args()
    FOLDER.mkdir(exist_ok=True)
    demo = [sys.executable, "-m", "liveness", "demo", "--users", str(asked.users)]
    demo += ["--seconds", str(60 * asked.minutes + 120), "--timeout", "30"]
    sizes = {}
    with subprocess.Popen(demo, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        addresses = (re.search(r"http://[\d.:]+/", line) for line in running.stdout)
        address = next(found[0] for found in addresses if found)
        reading = threading.Thread(target=running.stdout.read, daemon=True)
        reading.start()
        reading.join(60 * asked.minutes)
        for name, page in take(address):
            sizes[name] = len(page.screenshot(path=FOLDER / f"{name}.png"))
            sys.stdout.write(f"{name}.png: {sizes[name]:,} bytes\n")
        running.terminate()
        reading.join()
    return int(max(sizes.values()) > MOST_BYTES)


if __name__ == "__main__":
    sys.exit(main())
