"""How `make docs` makes a site of the pages, which nobody needs to read them."""

import re
from typing import Any, Final

from pygments.lexers.special import TextLexer

import liveness

project = "liveness"
version = release = liveness.__version__
root_doc = "docs/README"
# The source is the whole repository: links between pages stay what they are on a code host.
include_patterns = [
    *("*.md", "docs/*.md", "tests/README.md", "proto/README.md", "proto/cluster.md"),
    *("proto/clients/README.md", "proto/clients/*/README.md"),
    "proto/integrations/*/README.md",
]
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]

html_theme = "furo"
html_title = "liveness"
html_copy_source = False

myst_heading_anchors = 4
# Code hosts draw mermaid; a site that loads nothing from elsewhere shows its text.
PLAIN: Final = ("haproxy", "hex", "mermaid")

autodoc_member_order = "bysource"
autodoc_typehints = "description"


def add_contents(_: Any, page: str, source: list[str]) -> None:
    """Give the index a table of contents for the side of the site, in its own order."""
    if page == root_doc:
        pages = re.findall(r"\]\(([\w./-]+\.md)\)", source[0])
        listed = "\n".join(dict.fromkeys(pages))
        source[0] += f"\n```{{toctree}}\n:hidden:\n\n{listed}\n```\n"


def setup(app: Any) -> None:
    """What Sphinx calls."""
    for language in PLAIN:
        app.add_lexer(language, TextLexer)
    app.connect("source-read", add_contents)
