"""Is there a secret in what git tracks, or in an sdist? detect-secrets says.

It asks nobody whether a secret is a live one. Vectors, which are bytes written as hex, and
the ids of the commits of releases look random: there, random hex digits are allowed, and
every other kind of secret is looked for. The secrets of examples are known by their values.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from detect_secrets.core.plugins.util import get_mapping_from_secret_type_to_class
from detect_secrets.core.scan import _get_lines_from_file
from detect_secrets.core.secrets_collection import SecretsCollection
from detect_secrets.settings import get_plugins, transient_settings

from tests.audit.verdict import Verdict
from tests.helpers.tree import tracked

HEXADECIMAL: Final = ("proto/vectors/", "tests/upgrades/releases.py")
RANDOM_HEX: Final = "HexHighEntropyString"
# They guard nothing: the secret that the manual of webhooks shows, and one that is too short.
EXAMPLES: Final = frozenset(
    {"whsec_bGl2ZW5lc3MgZXhhbXBsZSBzZWNyZXQgMDEyMw==", "whsec_c2hvcnQ="}
)


def look(root: Path) -> Verdict:
    """Scan every file of the repository or sdist at *root*, as it is now."""
    names = tracked(root)
    random = [name for name in names if name.startswith(HEXADECIMAL)]
    others = [name for name in names if not name.startswith(HEXADECIMAL)]
    return Verdict(
        f"secrets in {len(names)} files of the project:",
        (*found(root, others), *found(root, random, allowed=RANDOM_HEX)),
    )


def found(root: Path, names: Iterable[str], allowed: str = "") -> list[str]:
    """What looks like a secret in these files, but for what one plugin would say."""
    known: Iterable[type] = get_mapping_from_secret_type_to_class().values()
    plugins = [{"name": it.__name__} for it in known if it.__name__ != allowed]
    secrets = SecretsCollection(root=str(root))
    clean = set[tuple[str, str]]()
    with transient_settings({"plugins_used": plugins}):
        for name in names:
            if is_suspicious(root / name, clean):
                secrets.scan_file(name)
    return [
        f"{name}:{secret.line_number} looks like a secret ({secret.type}): if it is one, "
        "revoke it, and take it out of the history"
        for name, secret in secrets
        if secret.secret_value not in EXAMPLES
    ]


def is_suspicious(path: Path, clean: set[tuple[str, str]]) -> bool:
    """Whether any plugin finds anything, before filters drop what is no secret after all.

    A scan of a file does the same and more for every plugin and line, at four times the
    cost. So only suspicious files are scanned.

    Args:
        path: The file.
        clean: Kinds of files and lines of them in which nothing was found; it grows.
    """
    plugins = get_plugins()
    for lines in _get_lines_from_file(str(path)):
        for line in {line.rstrip() for line in lines}:
            if (path.suffix, line) in clean:
                continue
            if any(plugin.analyze_line(str(path), line) for plugin in plugins):
                return True
            clean.add((path.suffix, line))
    return False
