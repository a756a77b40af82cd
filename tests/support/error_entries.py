"""Provokes the config mistakes that entries of tools/reference/errors.toml describe."""

import shutil

from pipeline.plan.plan import Plan
from pipeline.store.store import Store
from pipeline.store.workspace import Workspace
from tests.support.bench import SAMPLES

_PACKAGE = "vision"


def make_workspace(folder):
    """Make a workspace with the model `vision`, whose methods are `features` and `classify`."""
    shutil.copytree(SAMPLES / "archives" / "models" / "many", folder / "models" / _PACKAGE)
    (folder / "partition_configs").mkdir()
    return folder


def find_problems(folder, config):
    """Return the messages about a config in such a workspace."""
    path = folder / "partition_configs" / f"{_PACKAGE}.yaml"
    path.write_text(config.lstrip(), encoding="utf-8")
    plan = Plan(Workspace(folder, Store(folder / ".store"), 1))
    return [str(problem) for package in plan.packages for problem in plan.problems(package)]
