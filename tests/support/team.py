"""A team's workspace as text files, and the packages that a build from scratch makes of it."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tests.support.bench import Bench

Files = dict[str, str]  # a workspace's files, keyed by path
VERSIONS = ("1", "2", "3")
LIE = "9"  # a forged version or seed
MODELS = ("trained", "exported")


class Added(torch.nn.Module):
    """A module that adds a number, which identifies the version that a package was built from."""

    def __init__(self, number):
        super().__init__()
        self.number = number

    def forward(self, x):
        return x + self.number


DODO = """
from pathlib import Path

from pte_pipeline.tasks import *


def task_train():
    return {"actions": ["cp versions/$(cat version).pt2 models/trained.pt2"],
            "file_dep": ["version"], "targets": ["models/trained.pt2"]}


def task_fetch():
    return {"actions": ["mkdir -p data; cp seed data/seed"], "file_dep": ["seed"],
            "targets": ["data/seed"]}


def task_release():
    for config in Path("partition_configs").glob("[a-z]*.yaml"):
        package = f"build/{config.stem}/{config.stem}.pte"
        yield {"name": config.stem, "actions": [f"mkdir -p out; cp {package} out"],
               "file_dep": [package], "targets": [f"out/{config.stem}.pte"]}
"""
PLAIN_DODO = "from pte_pipeline.tasks import *\n"
EXPORTER = """
from pathlib import Path

import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return x + self.number


def export_methods():
    model = Model()
    model.number = float(Path("data/seed").read_text())
    return {"forward": torch.export.export(model, (torch.ones(2),))}
"""
CONFIG = """# {comment}
extends: _base
model: {model}
methods: {{forward: {{partitioners: []}}}}
constant_methods: {{get_constant: {constant}}}
"""
BASE = "constant_methods: {{get_base: {base}}}\n"


@dataclass(frozen=True)
class Package:
    """A config: its model (possibly one that doesn't exist), a constant, and a comment."""

    model: str = "trained"
    constant: int = 0
    comment: str = ""


@dataclass(frozen=True)
class Sources:
    """Everything in a checkout that people edit.

    If `tasks` is off, no task of the team makes `models/trained.pt2` and `data/seed`.
    """

    packages: Mapping[str, Package]
    version: str = "1"
    seed: str = "1"
    base: int = 0
    tasks: bool = True

    def files(self) -> Files:
        files = {
            "dodo.py": DODO if self.tasks else PLAIN_DODO,
            "models/exported.py": EXPORTER,
            "partition_configs/_base.yaml": BASE.format(base=self.base),
        }
        if self.tasks:
            files |= {"version": self.version, "seed": self.seed}
        for name, package in self.packages.items():
            files[f"partition_configs/{name}.yaml"] = CONFIG.format(**vars(package))
        return files

    def number(self, name: str) -> str:
        """Return the number that a package's model adds."""
        return self.version if self.packages[name].model == "trained" else self.seed

    def is_sound(self, name: str) -> bool:
        return self.packages[name].model in MODELS


class Checkout(Bench):
    """A checkout whose store other checkouts share."""

    shared: Path

    @property
    def store(self) -> Path:
        return self.shared

    def write(self, sources: Sources) -> None:
        """Write the sources as git does: unchanged files aren't touched."""
        files = sources.files()
        for path in (self.root / "partition_configs").glob("*.yaml"):
            if f"partition_configs/{path.name}" not in files:
                path.unlink()
        for name, text in files.items():
            path = self.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if not path.exists() or path.read_text() != text:
                path.write_text(text)


def make_checkout(root: Path, store: Path, versions: Path) -> Checkout:
    checkout = Checkout(root)
    checkout.shared = store
    root.mkdir(parents=True)
    (root / "versions").symlink_to(versions)
    return checkout


class Oracle:
    """The expected bytes of packages, built and validated from scratch, cached by their inputs."""

    def __init__(self, folder: Path, versions: Path) -> None:
        self._folder = folder
        self._versions = versions
        self._built: dict[Any, bytes] = {}

    def bytes_of(self, sources: Sources, name: str) -> bytes:
        package = sources.packages[name]
        key = sources.number(name), package.constant, sources.base
        if key not in self._built:
            root = self._folder / str(len(self._built))
            checkout = make_checkout(root, root / ".store", self._versions)
            alone = Sources({"p": Package("trained", package.constant)}, key[0], "1", sources.base)
            checkout.write(alone)
            (root / "dodo.py").write_text(PLAIN_DODO)
            shutil.copy(self._versions / f"{key[0]}.pt2", root / "models" / "trained.pt2")
            assert checkout.doit("lower", "validate") == 0, checkout.output
            self._built[key] = checkout.bytes_of("p", "p.pte")
        return self._built[key]

    def contents(self) -> set[bytes]:
        """Return the bytes of all packages requested so far."""
        return {*self._built.values()}


# What `doit plan` predicts, and what a run does

_OUTCOMES = {
    "in the store": {"hit"},
    "to do": {"built", "refit", "hit", "failed"},
    "waits": {"built", "refit", "hit", "up-to-date", "failed", "not-run"},
}


def read_plan(output: str) -> dict[str, str]:
    """Return the verdict on each action that a plan lists, keyed by kind and title."""
    verdicts = {}
    for line in output.splitlines():
        kind, *words = line.split()
        if kind not in ("export", "compile", "link", "validate"):
            continue
        title, rest = words[0], " ".join(words[1:])
        for verdict in _OUTCOMES:
            if rest.startswith(verdict):
                verdicts[f"{kind} {title}"] = f"{verdict}{rest.partition('the same as')[1]}"
    return verdicts


def find_lies(plan: Mapping[str, str], outcomes: Mapping[str, str]) -> list[str]:
    """Return a line for each action whose outcome contradicts the plan."""
    lies = []
    for title, outcome in outcomes.items():
        verdict = plan.get(title, "current")
        said = verdict.removesuffix("the same as")
        expected = set(_OUTCOMES.get(said, {"up-to-date"}))
        if said == "to do" and said == verdict:
            expected -= {"hit"}
        if outcome not in expected:
            lies.append(f"{title}: the plan said {verdict}, the run {outcome}")
    return lies
