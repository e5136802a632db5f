"""The published protocol and settings of the last release still hold; and which it is."""

import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import pytest

from liveness import __version__
from liveness.config.sources import load
from liveness.errors import ConfigError
from tests.core.conftest import READERS
from tests.core.wire import test_vectors as vectors
from tests.helpers.needs import require
from tests.helpers.processes import ran
from tests.helpers.tree import ROOT
from tests.upgrades.releases import RELEASES

Case = dict[str, Any]

# Frames that have another meaning since, as the changelog says.
CHANGED: Final = {
    "the-shortest-hello-of-a-watcher",
    "a-uid-with-a-lone-byte-ff-is-fatal",
    "a-uid-with-an-overlong-nul-is-fatal",
    "a-uid-with-a-surrogate-is-fatal",
    "a-uid-with-half-a-character-is-fatal",
    "a-uid-with-a-value-above-unicode-is-fatal",
    "one-uid-of-a-batch-in-broken-utf-8-is-fatal-for-all",
}


@pytest.fixture(scope="module")
def cases(previous: Path) -> list[Case]:
    """The test vectors of the last release, without those whose meaning has changed."""
    paths = (previous / "proto/vectors").glob("*.json")
    found = [case for path in paths for case in json.loads(path.read_text())["cases"]]
    assert {case["name"] for case in found} >= CHANGED
    return [case for case in found if case["name"] not in CHANGED]


@pytest.mark.parametrize("reader", READERS)
def test_frames_to_the_sidecar_mean_the_same(
    cases: list[Case], reader: ModuleType
) -> None:
    for case in cases:
        if case["direction"] == "to-sidecar":
            sidecar = vectors.Sidecar(case["before"], reader.Reader)
            sidecar.receive(vectors.octets(case))
            was = vectors.expected_frames(case)
            # What was added since has defaults.
            frames = [
                vectors.same_durations({key: frame[key] for key in old})
                for frame, old in zip(sidecar.frames, was, strict=True)
            ]
            errors = [case["error"]] if "error" in case else []
            assert vectors.exact(frames) == vectors.exact(was), case["name"]
            assert vectors.exact(sidecar.errors) == vectors.exact(errors), case["name"]


def test_frames_of_the_sidecar_are_of_the_schema(cases: list[Case]) -> None:
    for case in cases:
        if case["direction"] == "from-sidecar":
            for frame in vectors.decoded(vectors.octets(case)):
                vectors.FROM_US.validate(frame)


def test_each_setting_of_the_last_release_is_accepted_or_refused_by_its_name(
    previous: Path, tmp_path: Path
) -> None:
    example = (previous / "deploy/liveness.toml").read_text()
    lines = re.sub(r"^#(?=[a-z_]+ = )", "", example, flags=re.M).splitlines()
    file, kept = tmp_path / "liveness.toml", list[str]()
    for line in lines:
        kept.append(line)
        file.write_text("\n".join(kept))
        try:
            found = load(file=file, environ={}, unix_user=0)
        except ConfigError as error:
            key = kept.pop().partition(" ")[0]
            (fault,) = error.faults
            assert re.match(rf"{file}: there is no setting [a-z.]*{key}", fault)
    assert found.sources["timeout_s"] == str(file)


def test_tags_are_at_the_listed_commits() -> None:
    ids = "%(refname:strip=2) %(objectname) %(*objectname)"  # of the tag, of its commit
    git = [require("git"), f"--git-dir={ROOT / '.git'}"]
    done = ran(*git, "for-each-ref", f"--format={ids}", "--merged=HEAD", "refs/tags/v*")
    tagged = {line.split()[0]: line.split()[-1] for line in done.stdout.splitlines()}
    tagged.pop(f"v{__version__}", None)  # which no file in it can name
    listed = {release.tag: release.commit for release in RELEASES}
    assert tagged.items() <= listed.items()
