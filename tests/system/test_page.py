"""The live page in a real browser, on a real sidecar with real gateways.

At the end of every test the browser has found no fault with the page: no error in its
console, nothing that the content security policy forbids, and nothing asked for but from
the sidecar itself.
"""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, get_type_hints

import pytest
from playwright.sync_api import (
    Browser,
    ConsoleMessage,
    Locator,
    Page,
    Request,
    Route,
    expect,
    sync_playwright,
)

from liveness.lab.common.processes import free_port
from liveness.metrics.now import OutletNow
from tests.helpers.needs import require
from tests.system.client import Client
from tests.system.conftest import Start
from tests.system.sidecar import Sidecar

SOON_MS: Final = 60_000
HOSTILE: Final = "<img src=x onerror=\"document.title='taken'\"><b>bold</b>"
# What a browser says by itself of answers that a test provokes.
NOT_THERE: Final = "net::ERR_(CONNECTION_|INCOMPLETE_CHUNKED|EMPTY_RESPONSE)"
REFUSED: Final = "status of 40[01] "
LIVE: Final = re.compile(r"/v1/live\?")
WITH_A_FILTER: Final = re.compile(r"/v1/live\?.*&uid=")
ABOVE_THE_BASE: Final = r" (?!100\.0)\d"  # a point of a curve whose value is not 0

Open = Callable[..., Page]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    chromium = require("chromium")  # Debian's own
    expect.set_options(timeout=SOON_MS)
    arguments = ["--no-sandbox", "--disable-dev-shm-usage"]
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=chromium, args=arguments)
        yield running
        running.close()


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Open]:
    """Opens `/` of a sidecar, by `open_page(sidecar, "#uid=7", color_scheme="dark")`.

    It is live when this returns. What the browser's console says is a fault, but for what
    has the pattern *but*.
    """
    contexts = []
    faults: list[str] = []
    expected = ["^$"]

    def opened(
        sidecar: Sidecar,
        rest: str = "",
        *,
        but: str = "^$",
        **options: object,
    ) -> Page:
        expected.append(but)
        address = f"http://{sidecar.line('ready')['http']}"
        context = browser.new_context(**options)  # type: ignore[arg-type]  # by name
        contexts.append(context)

        def from_it_alone(route: Route) -> None:
            url = route.request.url
            if not url.startswith((f"{address}/", "data:")):
                faults.append(f"asked {url}")
            route.fallback()

        def said(message: ConsoleMessage) -> None:
            if message.type == "error":
                faults.append(message.text)

        context.route("**/*", from_it_alone)
        page = context.new_page()
        page.set_default_timeout(SOON_MS)
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("console", said)
        page.goto(f"{address}/{rest}")
        is_live(page)
        return page

    yield opened
    for context in contexts:
        with suppress(Exception):
            context.unroute_all(behavior="ignoreErrors")
        context.close()
    assert [each for each in faults if not re.search("|".join(expected), each)] == []


def is_live(page: Page) -> None:
    expect(page.locator("#link-state")).to_have_text("live")


def arrive(sidecar: Sidecar, name: str, *uids: str | int) -> Client:
    gateway = sidecar.gateway(name)
    gateway.apply("login", list(uids))
    return gateway


def is_of_a_script(request: Request) -> bool:
    """Whether it is the page's question why its stream was refused."""
    return request.resource_type == "fetch" and "/v1/live?" in request.url


def refused(page: Page) -> list[Route]:
    """Ask for a uid that is none; the question why, which waits for its answer."""
    asked: list[Route] = []

    def keep(route: Route) -> None:
        if is_of_a_script(route.request):
            asked.append(route)
        else:
            route.fallback()

    page.route(WITH_A_FILTER, keep)
    with page.expect_request(is_of_a_script):
        show_only(page, "x" * 300)
    return asked


def show_only(page: Page, uid: str) -> None:
    page.get_by_label("Only this user").fill(uid)
    page.get_by_label("Only this user").press("Enter")


def show(page: Page, sidecar: Sidecar, **changed: object) -> None:
    """Reload the page, with a summary that is *changed* from the sidecar's own."""
    summary = json.loads(sidecar.get("/v1/wheel")[1])
    summary |= {"records": [], "left_out": 0, **changed}
    headers = {"content-type": "text/event-stream"}
    body = f"event: summary\ndata: {json.dumps(summary)}\n\n"
    page.route(LIVE, lambda route: route.fulfill(headers=headers, body=body))
    page.reload()


def record(page: Page, uid: str) -> str:
    """How the feed shows the newest record of a user, once it does."""
    row = page.locator("#records .record", has=page.get_by_text(uid, exact=True))
    return row.first.inner_text()


def test_the_figures_move_with_real_traffic(
    start: Start, open_page: Open, name: str
) -> None:
    sidecar = start()  # users of other tests leave
    page = open_page(sidecar)
    users = page.locator("#users")
    expect(users).to_have_text(re.compile("^[0-9]"))
    before = int((users.text_content() or "").replace(",", ""))
    gateway = arrive(sidecar, name, *(f"{name}-{n}" for n in range(40)))
    expect(users).to_have_text(str(before + 40))
    row = page.locator("#gateways .row", has_text=name)
    expect(row).to_contain_text("users 40")
    expect(page.locator("#sectors path[d^=M]")).not_to_have_count(0)
    plot = page.locator("#chart-events .plot")
    drawn = plot.locator(".t-login")
    expect(drawn).to_have_attribute("d", re.compile(f"^M.*{ABOVE_THE_BASE}"))
    # In one second, which stays in the history; no other second has as many logins.
    assert max(read_back(plot, "login")) > 10
    gateway.apply("logout", [f"{name}-{n}" for n in range(30)])
    expect(users).to_have_text(str(before + 10))
    expect(row).to_contain_text("users 10")
    ready = page.locator("#ready")
    expect(ready).to_have_text("ready")
    expect(page).to_have_title(re.compile(f"^{before + 10} online "))
    gateway.close()
    expect(row).to_contain_text("not connected")


def test_a_silent_user_leaves_and_the_feed_says_why(
    quick: Sidecar, open_page: Open, name: str
) -> None:
    page = open_page(quick)
    page.evaluate(WATCH_FIRED)
    gateway = arrive(quick, name, "silent", 4711)
    gateway.send("login", "leaving", {"timeout": 3_600})  # longer than any test takes
    gateway.apply("logout", ["leaving"])
    page.wait_for_selector("#records .record[data-reason=silence]")
    told = page.locator("#records .record", has_text="silence").first.inner_text()
    assert re.search(r"\d s of silence, last login", told)
    row = page.locator('#records [data-reason="logout"]', has_text="leaving")
    expect(row).to_contain_text("logged out")
    # A number is shown as the text that names the same user.
    assert "4711" in record(page, "4711")
    expect(page.locator("#chart-offlines .t-silence").last).to_have_attribute(
        "d", re.compile("^M")
    )
    expect(page.locator("#verdict")).to_have_text(re.compile("promise"))
    # No waiting for a function: the policy lets nobody evaluate one.
    expect(page.locator("body[data-fired]")).to_have_count(1)


def test_why_a_stream_was_refused_is_of_no_concern_to_the_next(
    sidecar: Sidecar, open_page: Open, name: str
) -> None:
    page = open_page(sidecar, but=REFUSED)
    asked = refused(page)
    show_only(page, f"after-{name}")
    is_live(page)
    with page.expect_response(lambda got: is_of_a_script(got.request)) as answered:
        asked[0].continue_()
    assert answered.value.status == 400
    answered.value.finished()  # its head alone says nothing yet
    arrive(sidecar, name, f"after-{name}")
    record(page, f"after-{name}")
    expect(page.locator("#feed-note")).to_have_text("")
    is_live(page)
    page.unroute(WITH_A_FILTER)
    for uid, note in (("x" * 300, "Refused: "), ("", "")):
        show_only(page, uid)
        expect(page.locator("#feed-note")).to_contain_text(note)
    is_live(page)


def test_an_answer_that_never_comes_is_not_waited_for(
    sidecar: Sidecar, open_page: Open
) -> None:
    page = open_page(sidecar, but=f"{REFUSED}|{NOT_THERE}")
    page.clock.install()
    refused(page)
    with page.expect_event("requestfailed", is_of_a_script):
        page.clock.fast_forward(10_000)
    page.unroute(WITH_A_FILTER)
    with page.expect_request(WITH_A_FILTER):
        page.clock.fast_forward(10_000)
    expect(page.locator("#feed-note")).to_contain_text("Refused: ")


def test_a_list_that_is_not_whole_says_so(
    start: Start, open_page: Open, name: str
) -> None:
    sidecar = start(3_600)  # no record comes but those that this test causes
    page = open_page(sidecar)
    gateway = arrive(sidecar, name, *(f"{name}-{n}" for n in range(200)))
    rows, records = page.locator("#records li"), page.locator("#records .record")
    missed = rows.filter(has_text=re.compile("more records? at"))
    expect(missed).not_to_have_count(0)
    page.get_by_label("online", exact=True).uncheck()
    expect(rows).to_have_count(0)
    expect(page.locator("#feed-note")).to_have_text("Nothing yet: offline and moved.")
    gateway.apply("logout", [f"{name}-0"])
    expect(records).to_have_count(1)
    # Another filter, and another page, begin with the newest records that match it.
    page.get_by_label("online", exact=True).check()
    for shown in (page, open_page(sidecar)):
        expect(shown.locator("#records .record")).to_have_count(50)
        expect(shown.locator("#records li").first).to_contain_text("logged out")
        expect(shown.locator("#records li").last).to_contain_text("see liveness log")
    show_only(page, f"{name}-0")
    expect(rows).to_have_count(2)
    expect(rows.last).to_contain_text("by login")
    show_only(page, "nobody")
    expect(page.locator("#feed-note")).to_have_text("Nothing yet: of nobody.")


def test_a_page_opens_with_the_newest_records_and_goes_on_behind_them(
    quick: Sidecar, open_page: Open, name: str
) -> None:
    gateway = arrive(quick, name, f"before {name}")
    gateway.send("after", "reminder", 0.1)  # a record of no user
    gateway.apply("logout", [f"before {name}"])
    page = open_page(quick)
    users = page.locator("#records .record", has_text=name)
    expect(users).to_have_count(2)
    gateway.apply("login", f"later {name}", {"timeout": 3_600})  # it stays
    expect(users.first).to_contain_text(f"later {name}")
    expect(users).to_have_count(3)


def test_a_fresh_page_marks_the_user_of_its_address_and_scrolls_there(
    sidecar: Sidecar, open_page: Open, name: str
) -> None:
    arrive(sidecar, name, name)
    page = open_page(sidecar, f"#uid={name}", viewport={"width": 900, "height": 500})
    # Before the answer is asked for again, and before the user's next event.
    expect(page.locator("#marker")).to_be_visible(timeout=3_000)
    expect(page.locator("#marker")).to_have_attribute("transform", re.compile("^rot"))
    expect(page.locator("#explained .sentence")).to_be_in_viewport()
    expect(page.locator("#explain")).to_be_in_viewport(ratio=1)


def test_a_connection_is_shown_to_its_last_digit(
    sidecar: Sidecar, open_page: Open, name: str
) -> None:
    # As the protocol advises; and two that no double holds.
    conns = [1_785_000_000 << 20, 2**53 + 1, 2**63 - 1]
    gateway = sidecar.gateway(name)
    gateway.apply("login", [f"{name}-{n}" for n in range(3)], {"conn": conns})
    page = open_page(sidecar, viewport={"width": 390, "height": 800})
    shown = page.locator("#explained .facts div", has_text="Connection").locator("dd")
    for n, conn in enumerate(conns):
        page.get_by_label("User", exact=True).fill(f"{name}-{n}")
        page.get_by_role("button", name="Explain").click()
        told = page.locator("#explained .sentence")
        expect(told).to_contain_text(f"(connection {conn})")
        expect(shown).to_have_text(f"{conn}")
        assert shown.evaluate("field => field.scrollWidth <= field.clientWidth")


@pytest.mark.parametrize(("decided_s", "verdict"), [(0.03, "met"), (0.06, "missed")])
def test_what_is_red_and_what_is_said_of_the_promise_agree(
    sidecar: Sidecar, open_page: Open, decided_s: float, verdict: str
) -> None:
    page = open_page(sidecar, but=NOT_THERE)
    lateness = json.loads(sidecar.get("/v1/wheel")[1])["lateness"]
    for stage, p99_s in (("decided", decided_s), ("durable", 0.2), ("sent", 0.4)):
        lateness[stage] = {"count": 100, "p50_s": 0.01, "p99_s": p99_s}
    show(page, sidecar, lateness=lateness)
    expect(page.locator("#verdict")).to_have_class(f"verdict {verdict}")
    said = "beyond" if verdict == "missed" else "within"
    expect(page.locator("#verdict")).to_contain_text(
        f"decided {said} the promised 50 ms at p99"
    )
    expect(page.locator("#stages .late")).to_have_count(int(verdict == "missed"))
    expect(page.locator("#stages .scale .promise")).to_have_count(1)


OUTLET: Final = dict.fromkeys(get_type_hints(OutletNow), 0) | {
    "outlet": "webhooks.mail",
    "since": 1_795_168_800_000,
    "detail": HOSTILE,
    "state": "stopped",
    "dead_kept": 4,
}
STALLED: Final[dict[str, object]] = {
    "name": HOSTILE,
    "role": "gateway",
    "why": "unacknowledged",
    "unacked": 10_000,
    "for_s": 95.0,
}


def test_what_a_summary_says_is_shown(sidecar: Sidecar, open_page: Open) -> None:
    page = open_page(sidecar, but=NOT_THERE, viewport={"width": 390, "height": 844})
    expect(page.locator("#outlets-section")).to_be_hidden()
    show(page, sidecar, slots=2, slot_users=[0, 0], outlets=[OUTLET], stalled=[STALLED])
    for where, text in (
        ("#outlets-note", "webhooks dead"),
        ("#outlets .reason", f": {HOSTILE}"),
        ("#notices", "webhooks.mail is stopped"),
        ("#gateways-note", f"gateway {HOSTILE} has not acknowledged 10,000 records"),
    ):
        expect(page.locator(where)).to_contain_text(text)
    expect(page.locator("#ticks text")).to_have_text(["0", "1"])
    assert page.evaluate(IS_WITHIN_THE_WINDOW)


def test_a_logout_that_ends_no_session_is_no_users(
    start: Start, open_page: Open
) -> None:
    sidecar = start(60)
    page = open_page(sidecar)
    gateway = arrive(sidecar, "gw", *(f"u{n}" for n in range(5)))
    # Five users, and the connections that records had the gateway close.
    gateway.apply(
        "logout", [f"u{n}" for n in range(5)] + [f"gone{n}" for n in range(90)]
    )
    record(page, "u4")
    expect(page.locator("#users")).to_have_text("0")
    # The areas of events are stacked, so that logins raise that of logouts too. A bar of
    # the offlines, which stand in the same second, is drawn only where there are some.
    bars = page.locator("#chart-offlines path.t-logout")
    expect(bars).to_have_attribute("d", re.compile(r"^M"))
    plot = page.locator("#chart-events .plot")
    assert 2 < max(read_back(plot, "logout")) <= 6
    # And in the history that another page begins with.
    page = open_page(sidecar)
    assert 2 < max(read_back(page.locator("#chart-events .plot"), "logout")) <= 6


def test_after_a_restart_the_page_goes_on_by_itself(
    tmp_path: Path, open_page: Open
) -> None:
    with Sidecar(tmp_path) as sidecar:
        sidecar.http = f"127.0.0.1:{free_port()}"  # the same after the restart
        sidecar.start()
        arrive(sidecar, "gw", "stays")
        page = open_page(sidecar, but=NOT_THERE)
        expect(page.locator("#users")).to_have_text("1")
        sidecar.stop()
        state = page.locator("#link")
        expect(state).to_have_attribute("data-state", "reconnecting")
        expect(state).to_contain_text(re.compile(r"last heard \d+ s ago"))
        hand = page.locator("#hand").get_attribute("transform")
        sidecar.start()
        arrive(sidecar, "other", "meanwhile")
        is_live(page)
        expect(page.locator("#users")).to_have_text("2")
        # The records of that time are above the line, those from before below it.
        rows = page.locator("#records li")
        expect(rows).to_have_count(3)
        expect(rows).to_contain_text(["meanwhile", "Not connected from", "stays"])
        expect(rows.nth(1)).not_to_contain_text("missing here")
        expect(page.locator("#hand")).not_to_have_attribute("transform", hand or "")
        arrive(sidecar, "gw", "comes")
        assert "by login" in record(page, "comes")


def test_names_are_shown_as_text_whatever_they_say(
    sidecar: Sidecar, open_page: Open
) -> None:
    page = open_page(sidecar, viewport={"width": 390, "height": 844})
    names = [HOSTILE, "مستخدم", "a\u202etxt.exe", "👩 ops", "x" * 255]
    arrive(sidecar, f"{HOSTILE[:30]}{'y' * 34}", *names)
    arrive(sidecar, "gateway-of-some-length.chat.example.net", "on a phone")
    record(page, "on a phone")
    assert HOSTILE in record(page, HOSTILE)
    # What turns the direction of what follows is seen, and turns nothing.
    assert "a\\u202etxt.exe" in record(page, "a\\u202etxt.exe")
    assert "مستخدم" in record(page, "مستخدم")
    expect(page.locator("#gateways")).to_contain_text("<img src=x")
    assert page.locator("main img, main b b").count() == 0
    assert "taken" not in page.title()
    for width, height in ((390, 844), (320, 640)):  # telephones
        page.set_viewport_size({"width": width, "height": height})
        assert page.evaluate(IS_WITHIN_THE_WINDOW)


def test_all_is_reached_and_read_out_by_keyboard(
    sidecar: Sidecar, open_page: Open
) -> None:
    arrive(sidecar, "gw of keys", "pressed")
    page = open_page(sidecar)
    reached = []
    for _ in range(100):  # 50 of them are records in the feed, some of the same user
        page.keyboard.press("Tab")
        focused = page.evaluate(FOCUSED)
        if focused is None:
            break
        reached.append(focused)
    assert reached[0] == "Skip to the figures"
    wanted = ["ring", "explain-uid", "filter-uid", "filter-gateway", "pause", "records"]
    assert {*wanted, "Health", "Metrics", "Dead letters"} <= {*reached}
    assert sum("over the last five minutes" in name for name in {*reached}) == 3
    for name in ("ring", "Users online, over the last five minutes"):
        slider = page.locator(f'[id="{name}"], [aria-label="{name}"]')
        # Two points further on it is another second, and reads otherwise.
        expect(slider).to_have_attribute("aria-valuemax", re.compile("^([3-9]|..+)$"))
        slider.focus()
        places, told = [], []
        for key in ("Home", "End", "ArrowLeft"):
            slider.press(key)
            places.append(int(slider.get_attribute("aria-valuenow") or ""))
            told.append(slider.get_attribute("aria-valuetext") or "")
        first, last, before_last = places
        assert first == int(slider.get_attribute("aria-valuemin") or "")
        assert first < before_last < last
        assert told[0] != told[1]
        assert all(re.search(r"\d", text) for text in told)
    ring = page.locator("#ring")
    ring.focus()
    ring.press("Home")
    expect(page.locator("#slot-text")).to_contain_text(re.compile(r"^Slot \d+: "))
    ring.press("Escape")
    expect(page.locator("#slot-text")).to_contain_text("30 slots of 2 s")


def read_back(plot: Locator, name: str) -> list[float]:
    """The texts of a chart's series at each point, from the newest, by keys."""
    plot.focus()
    plot.press("End")
    said = []
    for _ in range(int(plot.get_attribute("aria-valuenow") or "") + 1):
        told = plot.get_attribute("aria-valuetext") or ""
        said += re.findall(rf"\b{name} ([\d,.]+)", told)
        plot.press("ArrowLeft")
    plot.press("Escape")
    return [float(number.replace(",", "")) for number in said]


IS_WITHIN_THE_WINDOW: Final = "document.documentElement.scrollWidth <= innerWidth"
# Remembers that a dot left the ring, where it is for a moment only.
WATCH_FIRED: Final = """() => {
  const dots = document.getElementById("dots");
  const look = () => dots.querySelector(".fired") && (document.body.dataset.fired = "");
  new MutationObserver(look).observe(dots, { childList: true, subtree: true });
}"""
# What has the focus, if that can be seen.
FOCUSED: Final = """() => {
  const one = document.activeElement;
  if (one === document.body) return null;
  const shown = one.type === "checkbox" ? one.nextElementSibling : one;
  if (getComputedStyle(shown).outlineStyle === "none") return `unseen ${one.id}`;
  const name = one.querySelector("b")?.textContent ?? one.textContent.trim();
  return one.id || one.getAttribute("aria-label") || one.value || name;
}"""
