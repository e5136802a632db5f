"""`liveness webhooks`: tests webhooks; shows, retries and drops dead letters."""

from pathlib import Path
from typing import Annotated, Any, Final

from cyclopts import CycloptsError, Parameter

from liveness.cli.options import Json, Limit, Socket, declared, name_of
from liveness.config.sources import socket_path
from liveness.console import record_lines
from liveness.console.admin_client import (
    print_list,
    reading_answer,
    request_json,
)
from liveness.console.record_lines import ascii_json
from liveness.text import escaped, from_json, shortened, utc_time

# A webhook waits for its receiver for up to 300 s.
TIMEOUT_S: Final = 330.0
ANSWER_SHOWN: Final = 80  # characters of a receiver's answer in a line
REFUSED: Final = 1

Map = dict[str, Any]


# --- as text --------------------------------------------------------------------------


def letter_line(letter: Map) -> str:
    status = "no answer" if letter["status"] is None else letter["status"]
    parts = [
        f"{letter['id']}",
        utc_time(letter["at"]),
        escaped(letter["webhook"]),
        f"{status} after attempt {letter['attempts']}",
        shortened(letter["answer"], ANSWER_SHOWN),
        record_lines.text_line(from_json(letter["record"])),
    ]
    return "  ".join(filter(None, parts))


def result_line(result: Map) -> str:
    status = "no answer" if result["status"] is None else f"status {result['status']}"
    how = "accepted" if result["accepted"] else "not accepted"
    line = f"{how}: {status} after {result['seconds']:.3f} s"
    answer = shortened(result["answer"], ANSWER_SHOWN)
    return "  ".join(filter(None, [line, answer]))


# --- commands -------------------------------------------------------------------------

command: Final = declared(
    "webhooks",
    "webhooks test mail",
    help="Test a webhook; show its dead letters, send them again, drop them.",
)

Name = Annotated[str, Parameter(help="the webhook", metavar="NAME", converter=name_of)]


def _change(path: Path, what: str, **body: str) -> Map:
    return request_json(path, f"/v1/webhooks/{what}", body, timeout_s=TIMEOUT_S)


@command.command(name="test", help_epilogue="Example: liveness webhooks test mail")
def send_test(name: Name, /, *, socket: Socket = None, json: Json = False) -> int:
    """Send a test event now, and show what the receiver answers.

    The exit code is 0 if it accepted the event, 1 if not.
    """
    path = socket_path(socket)
    result = _change(path, "test", webhook=name)
    with reading_answer(path):
        line = f"{escaped(result['webhook'])}: {result_line(result)}"
        is_accepted = result["accepted"]
    print(ascii_json(result) if json else line)
    return 0 if is_accepted else REFUSED


@command.command(
    name="dead", help_epilogue="Example: liveness webhooks dead mail --limit 20"
)
def dead_command(
    name: Annotated[
        str | None,
        Parameter(help="the webhook (default: all)", metavar="NAME", converter=name_of),
    ] = None,
    /,
    *,
    socket: Socket = None,
    limit: Limit = 100,
    json: Json = False,
) -> None:
    """Show records that a receiver refused, the newest first."""
    print_list(
        socket_path(socket),
        "/v1/webhooks/dead",
        "dead",
        {} if name is None else {"webhook": name},
        line=ascii_json if json else letter_line,
        limit=limit,
        timeout_s=TIMEOUT_S,
    )


@command.command(name="retry", help_epilogue="Example: liveness webhooks retry mail")
def retry_command(name: Name, /, *, socket: Socket = None, json: Json = False) -> int:
    """Send a webhook's dead letters again, the oldest first, until the receiver fails.

    Those that it accepts are deleted. The exit code is 0 if none is left, 1 if some are.
    """
    path, accepted, refused = socket_path(socket), 0, 0
    body = {"webhook": name}
    while True:
        answer = _change(path, "retry", **body)
        with reading_answer(path):
            letter, left = answer["letter"], int(answer["left"])
            if letter is None:
                failure = None
                break
            body["after"] = str(letter["id"])
            accepted += letter["accepted"]
            refused += letter["refused"]
            if not (letter["accepted"] or letter["refused"]):
                failure = f"dead letter {letter['id']} was {result_line(letter)}"
                break
    line = f"{escaped(name)}: {accepted:,} accepted, {refused:,} refused, {left:,} left"
    total = {
        "webhook": name, "accepted": accepted, "refused": refused, "left": left,
        "failed": letter,
    }  # fmt: skip
    print(ascii_json(total) if json else line)
    if failure and not json:
        print(failure)
    return REFUSED if left else 0


@command.command(
    name="drop", help_epilogue="Example: liveness webhooks drop mail --yes"
)
def drop_command(
    name: Name,
    /,
    *,
    yes: Annotated[bool, Parameter(help="do delete them")] = False,
    socket: Socket = None,
    json: Json = False,
) -> None:
    """Delete all dead letters of a webhook for good, without sending them."""
    path = socket_path(socket)
    if not yes:
        raise CycloptsError(
            msg=f"all dead letters of {name!r} would be lost for good: look at them "
            "by `liveness webhooks dead`, then add --yes",
            command_chain=("webhooks", "drop"),
        )
    answer = _change(path, "drop", webhook=name)
    with reading_answer(path):
        line = f"{escaped(answer['webhook'])}: {int(answer['deleted']):,} deleted"
    print(ascii_json(answer) if json else line)
