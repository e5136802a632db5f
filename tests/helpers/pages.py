"""The documents as tests read them: pages, code blocks, commands, sections, tables, links."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from tests.helpers.tree import ROOT

MANUAL: Final = {
    str(path.relative_to(ROOT)): path.read_text()
    for path in [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        ROOT / "tests" / "README.md",
        *sorted((ROOT / "docs").glob("*.md")),
    ]
}
# A new page is reachable from here.
INDEX: Final = "docs/README.md"
WHOLE: Final = "\n".join(MANUAL.values())


def blocks(page: str, language: str) -> list[str]:
    """The code blocks of a page, by what stands behind their fence."""
    return re.findall(rf"^```{language}\n(.*?)^```$", MANUAL[page], re.M | re.S)


def example(page: str, has: str) -> str:
    """The one Python program of a page that has this in it."""
    (found,) = (block for block in blocks(page, "python") if has in block)
    return found


class Command(NamedTuple):
    """One command of a page's shell blocks, without what starts it as another user."""

    words: list[str]
    environ: dict[str, str]

    @property
    def program(self) -> str:
        return Path(self.words[0]).name


# What runs the command behind it.
WRAPPERS: Final = re.compile(
    r"(?:(?:sudo|exec|then|do|setpriv(?: --[\w-]+(?:=\S+)?)+"
    r"|docker compose exec \w+|kubectl exec \S+ -c \w+ --) )*"
)
# Between two commands. What is behind < and > is a file's name.
OPERATORS: Final = re.compile(r"[;&|()]+")


def shell_lines(page: str) -> Iterator[str]:
    """The command lines on a page, each complete."""
    return lines_typed(MANUAL[page])


def lines_typed(text: str) -> Iterator[str]:
    """The command lines in a part of a page, each complete."""
    for _, language, block in re.findall(
        r"^( *)```(sh|console)\n(.*?)^\1```$", text, re.M | re.S
    ):
        prompt = r"^ *\$ " if language == "console" else "^ *"
        for line in re.findall(rf"{prompt}((?:.*\\\n)*.+)$", block, re.M):
            yield line.replace("\\\n", "")


def commands(line: str) -> Iterator[Command]:
    """The commands of a line: those of a pipe, too."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words: list[str] = []
    tokens = iter([*lexer, ";"])
    for token in tokens:
        if token.lstrip("0123456789")[:1] in ("<", ">"):
            next(tokens)
        elif not OPERATORS.fullmatch(token):
            words.append(token)
        elif words:
            yield _command(words)
            words = []


def _command(words: list[str]) -> Command:
    environ: dict[str, str] = {}
    while words and (found := re.fullmatch(r"([A-Z_]+)=(.*)", words[0])):
        environ[found[1]] = found[2]
        words = words[1:]
    wrapper = WRAPPERS.match(" ".join(words))
    return Command(words[len(wrapper[0].split()) if wrapper else 0 :], environ)


def section(page: str, title: str) -> str:
    """A section of the second level, with those below it."""
    return MANUAL[page].split(f"\n## {title}\n")[1].split("\n## ")[0]


def rows(text: str) -> list[list[str]]:
    """The cells of every table, without heads."""
    tables = re.findall(r"^\|.*\n\|[-| :]+\|\n((?:\|.*\n?)*)", text, re.M)
    lines = [line for table in tables for line in table.splitlines()]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def prose(text: str) -> str:
    """A text without its code blocks."""
    return re.sub(r"^( *)```.*?^\1```$", "", text, flags=re.M | re.S)


def inline(text: str) -> str:
    """The parts of a text between backticks, a line each."""
    return "\n".join(re.findall(r"`([^`\n]+)`", text))


def anchors(text: str) -> set[str]:
    """The names by which a page's headings are linked to, as code hosts make them."""
    titles = re.findall(r"^#+ (.+)$", prose(text), re.M)
    return {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles}


def links(text: str) -> list[tuple[str, str]]:
    """Where a page leads within the repository: a path, empty for itself, and an anchor."""
    found = re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)", prose(text))
    return [(path, anchor) for path, anchor in found if "://" not in path]
