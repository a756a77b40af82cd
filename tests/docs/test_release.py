"""What a release needs: a license in each distribution, a single version, a changelog entry."""

import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email.parser import Parser

import pytest

from tests.support.bench import REPOSITORY

PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
# A path of this repository in NOTICE; paths of other projects are never below these folders.
_PATH = re.compile(r"\b(?:pipeline|examples|models|docs)/[\w./-]*\w/?")


def read(name):
    return (REPOSITORY / name).read_text(encoding="utf-8")


def test_the_license_is_that_of_the_metadata():
    assert PROJECT["license"] == "BSD-3-Clause"
    text = read("LICENSE")
    assert text.startswith("BSD 3-Clause License") and "The pte-pipeline authors" in text
    assert PROJECT["license-files"] == ["LICENSE", "NOTICE"]
    assert not [name for name in PROJECT["classifiers"] if name.startswith("License")]  # PEP 639


def test_notice_names_files_that_are_there():
    paths = _PATH.findall(read("NOTICE"))
    assert len(paths) > 10
    assert [path for path in paths if not (REPOSITORY / path).exists()] == []


def test_the_first_entry_of_the_changelog_is_of_this_version():
    """Between releases, the first entry is for the next release, followed by the last release."""
    entries = re.findall(r"^## (.*)$", read("CHANGELOG.md"), re.MULTILINE)
    release, is_development, _ = PROJECT["version"].partition(".dev")
    if is_development:
        assert entries.pop(0) == "Unreleased"
        last, date = entries[0].split(" ")
        assert tuple(map(int, last.split("."))) < tuple(map(int, release.split(".")))
    else:
        last, date = entries[0].split(" ")
        assert last == release
    assert re.fullmatch(r"\(\d{4}-\d\d-\d\d\)", date)


def test_the_version_stands_in_one_place():
    pattern = rf"(?<![\d.]){re.escape(PROJECT['version'])}(?![\d.])"
    files = [REPOSITORY / "mkdocs.yml", *REPOSITORY.glob("pipeline/**/*.py")]
    found = [path for path in files if re.search(pattern, path.read_text(encoding="utf-8"))]
    assert found == []


def test_the_pythons_of_the_classifiers_are_those_of_readme():
    named = [name.rpartition(" ")[2] for name in PROJECT["classifiers"] if ":: 3." in name]
    line = f"Python {', '.join(named[:-1])} or {named[-1]}"
    assert line in read("README.md")
    assert PROJECT["requires-python"] == f">={named[0]}"


@pytest.mark.slow
def test_distributions_hold_license_and_notice(tmp_path):
    code = (
        "import sys; from setuptools import build_meta as meta\n"
        "folder = sys.argv[1]; meta.build_sdist(folder); meta.build_wheel(folder)"
    )
    source = tmp_path / "source"  # setuptools writes next to its sources
    listed = subprocess.run(
        ["git", "ls-files"], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    for name in listed.stdout.splitlines():
        if name.startswith("pipeline/") or "/" not in name:
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((REPOSITORY / name).read_bytes())
    command = [sys.executable, "-c", code, str(tmp_path)]
    subprocess.run(command, cwd=source, check=True, capture_output=True, timeout=300)
    (wheel,), (sdist,) = tmp_path.glob("*.whl"), tmp_path.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        headers = Parser().parsestr(archive.read(metadata).decode())
    with tarfile.open(sdist) as archive:
        packed = archive.getnames()
    for name in PROJECT["license-files"]:
        assert any(each.endswith(f".dist-info/licenses/{name}") for each in names)
        assert any(each.endswith(f"/{name}") for each in packed)
    assert headers["License-Expression"] == "BSD-3-Clause"
    assert headers.get_all("License-File") == PROJECT["license-files"]
    assert "pipeline/features/pages/templates/tables.js" in names
