"""Histories for judges, as lines of text: what happens, and which faults that has."""


def histories(text: str, **parts: str) -> dict[str, tuple[str, list[str]]]:
    """By name: a script, and the faults that a judge has to find in it.

    A line is `NAME: SCRIPT => FAULT, FAULT`, and goes on where the next one is indented.
    `{PART}` in it is one of *parts*, which may have others in them.
    """
    found = {}
    for line in text.strip().replace("\n    ", " ").splitlines():
        while "{" in line:
            line = line.format(**parts)
        name, _, rest = line.partition(": ")
        script, _, faults = rest.partition(" => ")
        found[name] = (script, faults.split(", ") if faults else [])
    return found
