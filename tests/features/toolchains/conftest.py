"""Environments with real but separate Pythons, without a second installation of torch."""

import subprocess
import sys
import sysconfig

import pytest


@pytest.fixture(scope="session")
def make_environment(tmp_path_factory):
    """Make an environment whose Python finds this one's packages and additional modules."""

    def make(name="twin", shares_packages=True, **modules):
        folder = tmp_path_factory.mktemp(name) / "venv"
        subprocess.run(
            [sys.executable, "-m", "venv", "--without-pip", folder], check=True, timeout=60
        )
        [site_packages] = folder.glob("lib/python*/site-packages")
        if shares_packages:
            packages = sysconfig.get_path("purelib")
            (site_packages / "packages.pth").write_text(f"{packages}\n")
        for module, text in modules.items():
            (site_packages / f"{module}.py").write_text(text)
        return folder

    return make


@pytest.fixture(scope="session")
def twin(make_environment):
    """An environment with the same distributions as this one."""
    return make_environment()


@pytest.fixture(scope="session")
def started_twin(make_environment):
    """An environment with an additional module that Python runs at startup."""
    return make_environment("other", sitecustomize="STARTED = True\n")
