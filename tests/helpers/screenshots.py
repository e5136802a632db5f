"""The documents' pictures of the live page, taken of a real sidecar under real traffic.

    python -m tests.helpers.screenshots [--minutes 5.2] [--users 20000]

Users of three gateways speak every few seconds; some fall silent, log out, come back or
move. Once the charts are full, Chromium takes the pictures into `deploy/screenshots`.
"""

import argparse
import shutil
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from heapq import heapify, heappop, heappush
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Final

from playwright.sync_api import Page, sync_playwright

from liveness.client.sync import SyncSidecar, connect_sync
from tests.helpers.tree import ROOT
from tests.system.sidecar import Sidecar

FOLDER: Final = ROOT / "deploy/screenshots"
MOST_BYTES: Final = 150_000
# Scheme, width, height, and device pixels to one of ours.
LOOKS: Final = [
    ("light", "light", 1200, 860, 1.0),
    ("dark", "dark", 1200, 860, 1.0),
    ("narrow", "light", 390, 780, 1.75),
]
# More often than the default second, so that each second has its share of reports.
FLUSH_S: Final = 0.2
# Of 10,000 activities, this many are the last of their user, by kind.
SILENT, LOGOUT, MOVE = 4, 5, 2
# A gateway's users, as a share of all, and how often they speak.
GATEWAYS: Final = {
    "gw-1": (0.5, (6.0, 14.0)),
    "gw-2": (0.38, (6.0, 14.0)),
    "gw-mobile": (0.12, (12.0, 24.0)),
}


def uid(user: int) -> str:
    return f"user-{user:05}"


def talk(
    gateways: dict[str, SyncSidecar], users: int, is_over: threading.Event
) -> None:
    """Users that speak, each through its gateway at the time, until it is over."""
    random = Random(1)
    shares = [share for share, _ in GATEWAYS.values()]
    homes = random.choices([*GATEWAYS], shares, k=users)
    for user, home in enumerate(homes):
        gateways[home].login(uid(user))
    # When each speaks next, and whether it is away until then.
    agenda = [
        (random.uniform(*GATEWAYS[home][1]), user, False)
        for user, home in enumerate(homes)
    ]
    heapify(agenda)
    began = perf_counter()
    while not is_over.is_set():
        at, user, was_away = heappop(agenda)
        is_over.wait(began + at - perf_counter())
        gateway, draw, away_s = gateways[homes[user]], random.randrange(10_000), 0.0
        if was_away:
            gateway.login(uid(user))
        elif draw < SILENT:
            gateway.keepalive(uid(user))
            away_s = random.uniform(40, 70)
        elif draw < SILENT + LOGOUT:
            gateway.logout(uid(user))
            away_s = random.uniform(5, 40)
        elif draw < SILENT + LOGOUT + MOVE:
            homes[user] = random.choice([*GATEWAYS])
            gateways[homes[user]].login(uid(user))
        elif draw % 6:
            gateway.keepalive(uid(user))
        else:
            gateway.message(uid(user))
        pause_s = away_s or random.uniform(*GATEWAYS[homes[user]][1])
        heappush(agenda, (at + pause_s, user, away_s > 0))


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
    parser.add_argument("--users", type=int, default=20_000)
    asked = parser.parse_args()
    FOLDER.mkdir(exist_ok=True)
    is_over = threading.Event()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="l")))
        sidecar = stack.enter_context(Sidecar(folder, 30, flush_s=FLUSH_S)).start()
        gateways = {
            name: stack.enter_context(connect_sync(sidecar.socket, name=name))
            for name in GATEWAYS
        }
        for gateway in gateways.values():
            threading.Thread(
                target=lambda it=gateway: [*it.ended()], daemon=True
            ).start()
        going = threading.Thread(target=talk, args=[gateways, asked.users, is_over])
        going.start()
        stack.callback(going.join)
        stack.callback(is_over.set)
        is_over.wait(asked.minutes * 60)
        sizes = {}
        for name, page in take(f"http://{sidecar.line('ready')['http']}/"):
            sizes[name] = len(page.screenshot(path=FOLDER / f"{name}.png"))
            sys.stdout.write(f"{name}.png: {sizes[name]:,} bytes\n")
    return int(max(sizes.values()) > MOST_BYTES)


if __name__ == "__main__":
    sys.exit(main())
