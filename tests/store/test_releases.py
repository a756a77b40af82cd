"""The installed toolchain, compared with the known releases."""

import subprocess
import sys
import tomllib

import pytest
from packaging.requirements import Requirement

from pipeline.store import releases
from pipeline.store.releases import RELEASES, describe_unknown, installed_versions
from tests.support.bench import REPOSITORY

KNOWN = {"torch": "2.13.0", "executorch": "1.4.1", "torchao": "0.18.0"}


def test_what_is_installed_is_known():
    assert describe_unknown(installed_versions()) == ""


@pytest.mark.parametrize(
    "others",
    [{}, {"torch": "2.13.0+cpu"}, {"torch": "2.13.0+cu130"}, {"torchao": "0.18.1+git12"}],
)
def test_known_releases_of_any_local_build(others):
    assert describe_unknown(KNOWN | others) == ""


@pytest.mark.parametrize(
    ("others", "words"),
    [
        ({"torch": "2.14.1"}, "untested toolchain: torch 2.14.1; tested: executorch "),
        (
            {"torch": "2.14.1"},
            "executorch 1.5.1 with torch 2.13.0 or 2.14.1: `pip install torch==2.13.0`",
        ),
        ({"torch": "2.13.1+cpu"}, "torch 2.13.1+cpu; "),
        ({"torch": "2.14.0.dev20260901+cpu"}, "torch 2.14.0.dev20260901+cpu; "),
        ({"torch": "2.13.0rc3"}, "torch 2.13.0rc3; "),
        ({"torch": "2.13.0a0+git1a2b"}, "torch 2.13.0a0+git1a2b; "),
        ({"executorch": "1.6.0"}, "executorch 1.6.0; "),
        ({"executorch": "not installed"}, "executorch not installed; "),
        ({"torchao": "0.17.0"}, "`pip install 'torchao>=0.18.0'`"),
        ({"torchao": "0.18.0.dev1"}, "torchao 0.18.0.dev1; "),
        ({"torch": "2.15.0", "executorch": "1.6.0"}, "torch 2.15.0, executorch 1.6.0; "),
    ],
)
def test_another_toolchain_is_described_with_a_remedy(others, words):
    assert words in describe_unknown(KNOWN | others)


@pytest.mark.parametrize(
    ("version", "release"),
    [
        ("1.4.1", "1.4.1"),
        ("1.5.1+cpu", "1.5.1"),
        ("1.5.0a0+git1", "1.5.1"),
        ("1.9.0", "1.5.1"),
        ("1.3.1", "1.4.1"),
        ("not installed", "1.4.1"),
    ],
)
def test_a_version_goes_by_the_last_release_before_it(version, release, monkeypatch):
    monkeypatch.setattr(releases, "installed_versions", lambda: {"executorch": version})
    installed = releases.installed_release.__wrapped__()
    assert installed.executorch == release


def test_the_ranges_of_the_distribution_are_known():
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    requirements = map(Requirement, project["dependencies"])
    ranges = {requirement.name: requirement.specifier for requirement in requirements}
    for release in RELEASES:
        assert release.executorch in ranges["executorch"]
        # The others are for toolchain environments, which don't contain this distribution.
        assert release.torch[0] in ranges["torch"]


@pytest.mark.parametrize(
    ("torch", "digest"), [("2.13.0+cpu", "first"), ("2.14.1+cu130", "again"), ("2.15.0", "first")]
)
def test_a_function_that_torch_rewrote_has_a_digest_of_its_own(torch, digest, monkeypatch):
    release = RELEASES[-1]._replace(rewritten_by_torch={"2.14": {"torch:load": "again"}})
    monkeypatch.setattr(releases, "_minor_of_torch", releases._minor_of_torch.__wrapped__)
    monkeypatch.setattr(releases, "installed_versions", lambda: {"torch": torch})
    assert release.digest_of("torch:load", "first") == digest


def test_versions_are_read_without_importing_what_they_are_of():
    code = (
        "import sys; from pipeline.store.releases import *; describe_unknown(installed_versions());"
        "print({'torch', 'executorch', 'torchao'} & sys.modules.keys())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "set()\n", done.stderr
