"""The documents as tests read them: pages, code blocks, sections, tables, links."""

import re
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
MANUAL: Final = {
    str(path.relative_to(ROOT)): path.read_text()
    for path in [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
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


def section(page: str, title: str) -> str:
    """A section of the second level, with those below it."""
    return MANUAL[page].split(f"\n## {title}\n")[1].split("\n## ")[0]


def rows(text: str) -> list[list[str]]:
    """The cells of every table, without heads."""
    tables = re.findall(r"^\|.*\n\|[-| :]+\|\n((?:\|.*\n?)*)", text, re.M)
    lines = [line for table in tables for line in table.splitlines()]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def inline(text: str) -> str:
    """What a text has between backticks, a line each."""
    return "\n".join(re.findall(r"`([^`\n]+)`", text))


def anchors(text: str) -> set[str]:
    """The names by which a page's headings are linked to, as code hosts make them."""
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
    titles = re.findall(r"^#+ (.+)$", prose, re.M)
    return {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles}


def links(text: str) -> list[tuple[str, str]]:
    """Where a page leads within the repository: a path, empty for itself, and an anchor."""
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
    found = re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)", prose)
    return [(path, anchor) for path, anchor in found if "://" not in path]
