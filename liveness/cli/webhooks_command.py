"""`liveness webhooks`: lists and tests webhooks; shows, retries and drops dead letters."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final

from cyclopts import CycloptsError, Parameter, Token

from liveness.cli.options import Json, Limit, Socket, declared, name_of
from liveness.config.sources import socket_path
from liveness.console import record_lines
from liveness.console.admin_client import reading_answer, request_json
from liveness.console.paged_list import print_list
from liveness.console.record_lines import ascii_json
from liveness.console.terminal import report_line
from liveness.text import escaped, from_json, shortened, utc_time

# A webhook waits for its receiver for up to 300 s; for `--all` the sidecar begins requests
# for 20 s.
TIMEOUT_S: Final = 330.0
ANSWER_SHOWN: Final = 80  # characters of a receiver's answer in a line
REFUSED: Final = 1

Map = dict[str, Any]


# --- as text --------------------------------------------------------------------------


def webhook_line(webhook: Map) -> str:
    """A webhook as one line for a person."""
    parts = [
        f"{escaped(webhook['webhook']):<12}",
        f"{webhook['state']:<9}",
        f"lag {webhook['lag_records']:,} ({webhook['lag_s']:.1f} s)",
        f"sent {webhook['sent']:,}",
        f"retries {webhook['retries']:,}",
        f"dead letters {webhook['dead_kept']:,}",
    ]
    counts = {
        "missed": webhook["missed"],
        "left out": webhook["damped"],
        "settling": webhook["settling"],
    }
    parts += [f"{name} {count:,}" for name, count in counts.items() if count]
    parts.append(escaped(webhook["url"]))
    if webhook["detail"]:
        parts.append(escaped(webhook["detail"]))
    return "  ".join(parts)


def letter_line(letter: Map) -> str:
    """A dead letter as one line for a person."""
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
    """The result of a request as one line for a person."""
    status = "no answer" if result["status"] is None else f"status {result['status']}"
    how = "accepted" if result["accepted"] else "not accepted"
    line = f"{how}: {status} after {result['seconds']:.3f} s"
    answer = shortened(result["answer"], ANSWER_SHOWN)
    return "  ".join(filter(None, [line, answer]))


# --- requests -------------------------------------------------------------------------


def _change(path: Path, what: str, **body: str) -> Map:
    return request_json(path, f"/v1/webhooks/{what}", body, timeout_s=TIMEOUT_S)


def _show_result(path: Path, result: Map, *, json: bool) -> int:
    """Prints the result of a request; returns the exit code."""
    with reading_answer(path):
        line = f"{escaped(result['webhook'])}: {result_line(result)}"
    print(ascii_json(result) if json else line)
    return 0 if result["accepted"] else REFUSED


# --- commands -------------------------------------------------------------------------

command: Final = declared(
    "webhooks",
    "webhooks list",
    help="List webhooks; test one, show its dead letters, send them again, drop them.",
)

Name = Annotated[str, Parameter(help="the webhook", metavar="NAME", converter=name_of)]


def _id_of(_kind: Any, tokens: Sequence[Token]) -> str:
    text = tokens[0].value
    if not (text.isascii() and text.isdecimal() and 1 <= int(text[:20]) < 2**63):
        raise ValueError(f"{text!r:.80} is not a number that `webhooks dead` shows")
    return text


LetterId = Annotated[
    str | None,
    Parameter(help="the number that `dead` shows", metavar="ID", converter=_id_of),
]
_ONE_OF: Final = "give either ID or --all NAME"


@command.command(name="list", help_epilogue="Example: liveness webhooks list --json")
def list_command(*, socket: Socket = None, json: Json = False) -> None:
    """List webhooks, and how each is; with --json an object a line."""
    path = socket_path(socket)
    found = request_json(path, "/v1/webhooks")
    line = ascii_json if json else webhook_line
    with reading_answer(path):
        lines = [line(webhook) for webhook in found["webhooks"]]
    for shown in lines:
        print(shown)
    if not lines:
        report_line("the settings have no [webhooks.NAME]")


@command.command(name="test", help_epilogue="Example: liveness webhooks test mail")
def send_test(name: Name, /, *, socket: Socket = None, json: Json = False) -> int:
    """Send a test event now, and show what the receiver answers.

    The exit code is 0 if it accepted the event, 1 if not.
    """
    path = socket_path(socket)
    return _show_result(path, _change(path, "test", webhook=name), json=json)


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


@command.command(name="retry", help_epilogue="Example: liveness webhooks retry 17")
def retry_command(
    id: LetterId = None,
    /,
    *,
    all: Annotated[
        str | None,
        Parameter(
            help="all dead letters of this webhook, the oldest first, until the "
            "receiver fails",
            metavar="NAME",
            converter=name_of,
        ),
    ] = None,
    socket: Socket = None,
    json: Json = False,
) -> int:
    """Send a dead letter again now, and delete it if it is accepted.

    The exit code is 0 if all were accepted, 1 if not.
    """
    path = socket_path(socket)
    match id, all:
        case str(), None:
            return _show_result(path, _change(path, "retry", id=id), json=json)
        case None, str():
            return _retry_all(path, all, json=json)
        case _:
            raise CycloptsError(msg=_ONE_OF, command_chain=("webhooks", "retry"))


def _retry_all(path: Path, name: str, *, json: bool) -> int:
    accepted = refused = 0
    body, is_over = {"webhook": name}, False
    while not is_over:  # the sidecar ends each answer after a while
        answer = _change(path, "retry-all", **body)
        with reading_answer(path):
            accepted += int(answer["accepted"])
            refused += int(answer["refused"])
            failed, left = answer["failed"], int(answer["left"])
            is_over = answer["next"] is None
            body["after"] = str(answer["next"])
            line = (
                f"{escaped(name)}: {accepted:,} accepted, {refused:,} refused, "
                f"{left:,} left"
            )
            if failed is not None:
                line += f"\ndead letter {failed['id']} was {result_line(failed)}"
    total = {**answer, "accepted": accepted, "refused": refused}
    print(ascii_json(total) if json else line)
    return REFUSED if left else 0


@command.command(name="drop", help_epilogue="Example: liveness webhooks drop 17")
def drop_command(
    id: LetterId = None,
    /,
    *,
    all: Annotated[
        str | None,
        Parameter(
            help="all dead letters of this webhook, which need not be in the settings "
            "any more",
            metavar="NAME",
            converter=name_of,
        ),
    ] = None,
    yes: Annotated[bool, Parameter(help="with --all: do delete them")] = False,
    socket: Socket = None,
    json: Json = False,
) -> None:
    """Delete a dead letter for good, without sending it."""
    path = socket_path(socket)
    match id, all:
        case str(), None:
            answer = _change(path, "drop", id=id)
        case None, str() if yes:
            answer = _change(path, "drop-all", webhook=all)
        case None, str():
            raise CycloptsError(
                msg=f"all dead letters of {all!r} would be lost for good: look at them "
                "by `liveness webhooks dead`, then add --yes",
                command_chain=("webhooks", "drop"),
            )
        case _:
            raise CycloptsError(msg=_ONE_OF, command_chain=("webhooks", "drop"))
    with reading_answer(path):
        deleted = 1 if all is None else int(answer["deleted"])
        left = int(answer["left"])
        line = f"{escaped(answer['webhook'])}: {deleted:,} deleted, {left:,} left"
    print(ascii_json(answer) if json else line)
