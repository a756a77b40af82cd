"""Environments are found, and one that can't build is refused with a remedy."""

import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.features.toolchains import environments, install
from pipeline.features.toolchains.environments import find_problems, find_python
from pipeline.store.errors import PipelineError
from pipeline.store.places import TOOLCHAINS

VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"


def settle(root, **toolchains):
    """Write a workspace's settings."""
    lines = [f'{name} = "{value}"' for name, value in toolchains.items()]
    text = "\n".join(["[tool.pte-pipeline.toolchains]", *lines])
    (root / "pyproject.toml").write_text(f"{text}\n")


def refuse(root, name):
    """Return the reasons why a toolchain is refused, one per line."""
    with pytest.raises(PipelineError) as refused:
        find_python(root, name)
    return refused.value.lines


def test_an_environment_is_found_by_its_folder(tmp_path, twin):
    settle(tmp_path, twin=twin)
    assert find_python(tmp_path, "twin") == twin / "bin" / "python"


def test_a_folder_may_be_relative_to_the_workspace(tmp_path, twin):
    (tmp_path / ".venv-twin").symlink_to(twin)
    settle(tmp_path, twin=".venv-twin")
    assert find_python(tmp_path, "twin") == tmp_path / ".venv-twin/bin/python"


def test_an_unknown_name_is_refused_with_the_setting_that_adds_it(tmp_path):
    [line] = refuse(tmp_path, "et15")
    assert line.startswith("no toolchain 'et15': add it to `toolchains` of [tool.pte-pipeline]")
    settle(tmp_path, et15=".venv")
    [line] = refuse(tmp_path, "et16")
    assert "did you mean 'et15'?" in line


def test_a_folder_that_is_no_environment_is_refused(tmp_path):
    settle(tmp_path, et15=".venv")
    assert refuse(tmp_path, "et15") == (
        "toolchain et15: .venv has no bin/python, so it is not an environment; "
        "`python -m venv .venv` creates one",
    )


def test_a_python_that_does_not_run_is_refused(tmp_path):
    python = tmp_path / "venv/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\necho broken >&2\nexit 3\n")
    python.chmod(0o755)
    settle(tmp_path, et15="./venv")
    [line] = refuse(tmp_path, "et15")
    assert line == f"toolchain et15: {python} does not run: broken"


def test_an_environment_without_packages_is_refused_with_what_installs_them(
    tmp_path, make_environment
):
    settle(tmp_path, empty=make_environment("empty", shares_packages=False))
    first, second = refuse(tmp_path, "empty")
    assert "no executorch and torch in it; `" in first
    assert "-m pip install executorch torch`" in first
    assert "lacks what pte-pipeline needs; `" in second
    assert "'blake3>=1.0,<2'" in second.replace("blake3<2,>=1.0", "blake3>=1.0,<2")


def test_another_python_is_refused(tmp_path):
    facts = {"python": "3.9.1", "distributions": {}}
    [line] = find_problems("old", tmp_path / "python", facts)
    assert line == (
        f"toolchain old: has Python 3.9.1, but doit runs in {VERSION}; "
        f"make an environment of Python {VERSION}"
    )


def test_a_dependency_that_is_too_old_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(environments, "requires", lambda _: ["joblib<2,>=1.6", "torch==2.13.0"])
    distributions = {"executorch": "1.5.1", "torch": "2.14.0", "joblib": "1.5.9"}
    facts = {"python": f"{VERSION}.0", "distributions": distributions}
    [line] = find_problems("et15", tmp_path / "python", facts)
    assert line.endswith("pip install 'joblib<2,>=1.6'`")
    distributions["joblib"] = "1.10.0"
    assert not list(find_problems("et15", tmp_path / "python", facts))


@pytest.mark.parametrize(
    ("text", "is_folder"),
    [
        (".venv", True),
        ("/opt/et15", True),
        ("venv-et15", True),
        ("envs/a==b", True),
        ("executorch==1.5.1", False),
        ("executorch>=1.5", False),
    ],
)
def test_requirements_are_told_from_folders(text, is_folder):
    assert environments.is_folder((text,)) is is_folder


def test_requirements_are_installed_once(tmp_path, monkeypatch):
    """The installers are stand-ins, so that no registry is needed."""
    commands = []

    def run(command, **_):
        commands.append([str(word) for word in command])
        if "venv" in command:
            Path(command[-1]).mkdir(parents=True)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(install.shutil, "which", lambda _: None)
    monkeypatch.setattr(install.subprocess, "run", run)
    texts = ("executorch==1.4.1",)
    python = install.install_environment("et14", texts, ["blake3<2,>=1.0"])
    assert python.is_relative_to(tmp_path / "pte-pipeline" / TOOLCHAINS)
    assert commands[1][1:] == [
        *("-P", "-m", "pip", "install", "--quiet"),
        *("executorch==1.4.1", "torch==2.13.0", "blake3<2,>=1.0"),
    ]
    assert install.install_environment("et14", texts, ["blake3<2,>=1.0"]) == python
    assert len(commands) == 2


def test_an_installation_that_fails_is_one_line(tmp_path, monkeypatch):
    def run(command, **_):
        return subprocess.CompletedProcess(command, 1, "", "ERROR: first\nERROR: no such release\n")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(install.subprocess, "run", run)
    with pytest.raises(PipelineError) as refused:
        install.install_environment("et99", ("executorch==99",), [])
    assert str(refused.value) == ("toolchain et99: could not be installed: ERROR: no such release")
