"""What `make audit` is to find, as far as it needs no network; real tools all."""

import json
import subprocess
from pathlib import Path
from typing import Final

import pytest
from packaging.utils import canonicalize_name

from tests.audit import leaks, licences, vulnerabilities
from tests.audit.locked import Pin, locks, pins
from tests.helpers.needs import needs
from tests.helpers.tree import ROOT

IT: Final = Pin(canonicalize_name("it"), "1.0", "")
# In two parts, or this file would be found too.
SECRET: Final = "AKIA" + "Q3EGRZ5T7DKXJ2PM"
HEX: Final = "92a96b656570616c697665" + "cf7fffffff12345678"


# --- licences


def installed(folder: Path, *said: str, name: str = "it") -> list[str]:
    """An installed package whose metadata says this; where it is."""
    info = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir(exist_ok=True)
    metadata = ["Metadata-Version: 2.4", f"Name: {name}", "Version: 1.0", *said]
    (info / "METADATA").write_text("\n".join([*metadata, ""]))
    return [str(folder)]


OSI: Final = "Classifier: License :: OSI Approved :: "


@pytest.mark.parametrize(
    ("said", "licence"),
    [
        (["License-Expression: MIT"], "MIT"),
        (["License-Expression: GPL-3.0-only OR MIT"], "GPL-3.0-only OR MIT"),
        (["License: Apache-2.0"], "Apache-2.0"),
        ([f"{OSI}BSD License"], "BSD-3-Clause"),
        (["License: in LICENSE", f"{OSI}MIT License"], "MIT"),
    ],
)
def test_an_allowed_licence_is_listed(
    tmp_path: Path, said: list[str], licence: str
) -> None:
    verdict = licences.look([IT], installed(tmp_path, *said))
    assert verdict.faults == ()
    assert verdict.list == (f"{licence}: it",)


@pytest.mark.parametrize(
    ("said", "fault"),
    [
        ("License-Expression: GPL-3.0-or-later", "is under GPL-3.0-or-later"),
        ("License-Expression: MIT AND AGPL-3.0-only", "is under MIT AND AGPL-3.0-only"),
        (
            "License-Expression: Apache-2.0 WITH LLVM-exception",
            "is under Apache-2.0 WITH",
        ),
        ("License: GPL-2.0-only", "is under GPL-2.0-only"),
        ("", "names no licence"),
        ("License: as you like", "names no licence"),
        (
            f"{OSI}MIT License\n{OSI}GNU General Public License (GPL)",
            "names no licence",
        ),
    ],
    ids=lambda text: text[:30],
)
def test_another_licence_is_refused(tmp_path: Path, said: str, fault: str) -> None:
    verdict = licences.look([IT], installed(tmp_path, *said.splitlines()))
    (told,) = verdict.faults
    assert told.startswith(f"it 1.0 {fault}")
    assert "do without" in told


def test_a_program_that_is_only_run_may_have_its_noted_licence(tmp_path: Path) -> None:
    for name, licence in licences.RUN_ONLY.items():
        for under, is_good in ((licence, True), ("AGPL-3.0-only", False)):
            there = installed(tmp_path, f"License-Expression: {under}", name=name)
            pin = Pin(canonicalize_name(name), "1.0", "")
            assert (licences.look([pin], there).faults == ()) is is_good
    dev = {pin.name for pin in pins([ROOT / "requirements/dev.lock"])}
    runtime = {pin.name for pin in pins([ROOT / "requirements/runtime.lock"])}
    assert licences.RUN_ONLY.keys() <= dev - runtime


def test_what_is_locked_and_not_there_is_not_passed_over(tmp_path: Path) -> None:
    assert "not installed" in licences.look([IT], [str(tmp_path)]).faults[0]
    there = installed(tmp_path, "License-Expression: MIT")
    newer = IT._replace(version="1.1")
    assert "installed as 1.0" in licences.look([newer], there).faults[0]
    elsewhere = IT._replace(marker="python_full_version < '3'")
    verdict = licences.look([elsewhere], [])
    assert verdict.faults == ()
    assert verdict.list == ("for other Pythons, and not looked at: it",)


def test_what_is_developed_with_is_under_allowed_licences() -> None:
    verdict = licences.look(pins([ROOT / "requirements/dev.lock"]))
    assert verdict.faults == ()
    assert any("trio" in line for line in verdict.list)


def test_every_lock_is_looked_at() -> None:
    assert len(locks(ROOT)) == 3
    names = {pin.name for pin in pins(locks(ROOT))}
    assert {"trio", "pytest", "mypy", "sphinx", "atheris", "pip-audit"} <= names
    for lock in locks(ROOT):
        text = lock.read_text()
        assert len(pins([lock])) == text.count("==") - text.count(" == ")


# --- secrets


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    return tmp_path


def track(tree: Path, name: str, text: str) -> None:
    (tree / name).parent.mkdir(parents=True, exist_ok=True)
    (tree / name).write_text(text)
    subprocess.run(["git", "-C", tree, "add", name], check=True)


@needs("git")
def test_a_secret_in_a_tracked_file_is_found(tree: Path) -> None:
    track(tree, "deploy/it.toml", f'# an example\nkey = "{SECRET}"\n')
    track(tree, "good.txt", "nothing\n")
    verdict = leaks.look(tree)
    assert verdict.about == "secrets in 2 files of the project:"
    assert {fault.split(" looks ")[0] for fault in verdict.faults} == {
        "deploy/it.toml:2"
    }
    assert any("AWS" in fault and "revoke it" in fault for fault in verdict.faults)


@needs("git")
def test_of_vectors_digits_are_no_secret_and_all_else_is_looked_for(tree: Path) -> None:
    track(tree, "proto/vectors/it.json", f'{{"hex": "{HEX}"}}\n')
    assert leaks.look(tree).faults == ()
    track(tree, "elsewhere.json", f'{{"hex": "{HEX}"}}\n')
    assert len(leaks.look(tree).faults) == 1
    track(tree, "proto/vectors/it.json", f'{{"hex": "{HEX}"}}\n{SECRET}\n')
    assert len(leaks.look(tree).faults) == 2


@needs("git")
def test_only_what_git_tracks_is_looked_at(tree: Path) -> None:
    (tree / "mine.txt").write_text(f"{SECRET}\n")
    track(tree, "gone.txt", f"{SECRET}\n")
    (tree / "gone.txt").unlink()
    assert leaks.look(tree).faults == ()


@pytest.mark.long
def test_there_is_no_secret_in_this_tree() -> None:
    assert leaks.look(ROOT).faults == ()


# --- vulnerabilities

KNOWN: Final = {"id": "CVE-2020-1", "fix_versions": ["1.1", "2.0"], "aliases": []}


def judged(*packages: dict[str, object]) -> tuple[str, ...]:
    report = json.dumps({"dependencies": packages, "fixes": []})
    return vulnerabilities.judged(report, "").faults


def test_a_known_vulnerability_is_a_fault_and_says_what_to_update_to() -> None:
    clean: dict[str, object] = {"name": "good", "version": "1.0", "vulns": []}
    assert judged(clean) == ()
    assert judged(clean, {"name": "it", "version": "1.0", "vulns": [KNOWN]}) == (
        "it 1.0: CVE-2020-1; update to 1.1 or 2.0",
    )
    (told,) = judged(
        {"name": "it", "version": "1.0", "vulns": [KNOWN | {"fix_versions": []}]}
    )
    assert "do without the package" in told


@pytest.mark.parametrize(
    "report", ["", "[", json.dumps({"dependencies": []})], ids=["none", "half", "empty"]
)
def test_no_answer_is_a_fault(report: str) -> None:
    verdict = vulnerabilities.judged(report, "ConnectionError: no route\n")
    assert len(verdict.faults) == 1


def test_a_package_that_the_index_did_not_answer_for_is_a_fault() -> None:
    (told,) = judged(
        {"name": "good", "version": "1.0", "vulns": []},
        {"name": "it", "skip_reason": "not found"},
    )
    assert told.startswith("of 1 among 2 packages there was no answer")
    assert "can be reached" in told
