"""The numbered rules of `proto/README.md`, "For gateway authors"."""

from typing import Final, NamedTuple


class Rule(NamedTuple):
    """A rule: its title, and whether a gateway may choose not to keep it."""

    title: str
    is_advised: bool = False


# As the page has them; a test holds both equal.
RULES: Final = {
    1: Rule("Hello first"),
    2: Rule("Plain msgpack"),
    3: Rule("Wait for `welcome`"),
    4: Rule("Stay within the limits"),
    5: Rule("Read always"),
    6: Rule("Frames come in any pieces"),
    7: Rule("Ignore what you do not know"),
    8: Rule("An error that is not fatal changes nothing"),
    9: Rule("Log in each connection"),
    10: Rule("Choose conns that never repeat, below 2^53"),
    11: Rule("Name the `conn` in every event"),
    12: Rule("Collect activity"),
    13: Rule("Report only what happened"),
    14: Rule("Log out each connection that ends"),
    15: Rule("Nothing behind the end"),
    16: Rule("Compare before closing"),
    17: Rule("Close what a record ends"),
    18: Rule("Take a repeat as read"),
    19: Rule("Acknowledge"),
    20: Rule("Reconnect"),
    21: Rule("After `bye`, come back within 1 s"),
    22: Rule('Where the table says "slowly", let the pauses grow to 30 s'),
    23: Rule("`replaced` is not answered by a reconnect"),
    24: Rule("Serve on without a link"),
    25: Rule("Keep your connections while you were shut out"),
    26: Rule("Say `fresh: true`"),
    27: Rule("Ping to know what is safe"),
    28: Rule("Send again"),
    29: Rule("Declare"),
    30: Rule("Say when connections began", is_advised=True),
    31: Rule("Promise `ping`", is_advised=True),
    32: Rule("Answer timers"),
}
