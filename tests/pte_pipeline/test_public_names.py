"""The public names match the package's, and the light ones import nothing heavy."""

import importlib
import subprocess
import sys
import tomllib

import pytest
from setuptools import find_packages

import pipeline
import pte_pipeline
from tests.support.bench import REPOSITORY

MODULES = ("backends", "devices", "features", "hugging_face", "report")


def test_the_names_at_the_top_are_those_of_the_package():
    assert pte_pipeline.__all__ == pipeline.__all__
    for name in pte_pipeline.__all__:
        assert getattr(pte_pipeline, name) is getattr(pipeline, name)
    assert set(pte_pipeline.__all__) <= set(dir(pte_pipeline))
    with pytest.raises(AttributeError, match="module 'pte_pipeline' has no attribute 'nothing'"):
        pte_pipeline.nothing  # noqa: B018


@pytest.mark.parametrize("module", MODULES)
def test_each_name_of_a_module_is_that_of_the_package(module):
    public = importlib.import_module(f"pte_pipeline.{module}")
    names = [name for name in vars(public) if not name.startswith("_")]
    objects = [vars(public)[name] for name in names if name != "claim_pipeline"]
    assert objects
    for value in objects:
        home = importlib.import_module(value.__module__)
        assert value.__module__.startswith("pipeline.")
        assert getattr(home, value.__name__) is value


def test_the_tasks_have_both_names():
    former, public = (importlib.import_module(f"{p}.tasks") for p in ("pipeline", "pte_pipeline"))
    assert public.__all__ == former.__all__
    assert all(getattr(public, name) is getattr(former, name) for name in public.__all__)


def test_what_a_dodo_file_and_a_plugin_import_is_light():
    code = (
        "import sys, pte_pipeline.tasks, pte_pipeline.doit_commands\n"
        "heavy = {'torch', 'executorch', 'joblib', 'numpy', 'pydantic', 'yaml'}\n"
        "assert not heavy & sys.modules.keys(), heavy & sys.modules.keys()\n"
        "import pte_pipeline.backends\n"
        "assert not {'torch', 'executorch', 'joblib'} & sys.modules.keys()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_both_packages_are_distributed():
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    patterns = project["tool"]["setuptools"]["packages"]["find"]["include"]
    packages = find_packages(str(REPOSITORY), include=patterns)
    assert {"pipeline", "pipeline.cli", "pte_pipeline", "pte_pipeline.report"} <= set(packages)
    tops = {package.partition(".")[0] for package in packages}
    assert tops == {"pipeline", "pte_pipeline"}
