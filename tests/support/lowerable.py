"""Checks on one small model that hold for every backend that can lower on this machine.

`bench_for` makes a workspace for a test. The `check_` functions verify what every package promises,
on a package that `doit` built there. Each backend's test file picks the options, and skips the
promises that the backend can't keep.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import textwrap
from collections.abc import Collection
from pathlib import Path
from typing import Any

import yaml

from pipeline.plan.plan import Plan
from pipeline.store.store import Store
from pipeline.store.workspace import Workspace
from tests.support.bench import REPOSITORY, Bench
from tests.support.resident import run_python

# Convolutions, a linear layer and pointwise operators, in two methods that share a trunk. Every
# backend of the catalogue takes most of them.
MODEL = '''
"""A convolutional trunk with a head."""

import torch
from torch import nn
from torch.export import export


class Features(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.second = nn.Conv2d(8, 8, 3, stride=2, padding=1)

    def forward(self, x):
        return torch.relu(self.second(torch.relu(self.first(x))))


class Classify(nn.Module):
    def __init__(self, trunk):
        super().__init__()
        self.trunk = trunk
        self.head = nn.Linear(8 * 4 * 4, 10)

    def forward(self, x):
        return self.head(self.trunk(x).flatten(1))


def inputs(seed):
    return (torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(seed)),)


def export_methods():
    trunk = Features().eval().requires_grad_(False)
    classify = Classify(trunk).eval().requires_grad_(False)
    return {"features": export(trunk, inputs(0)), "classify": export(classify, inputs(0))}


def example_inputs(method):
    return [inputs(1)]


def calibration_inputs(method):
    return [inputs(seed) for seed in range(2, 6)]
'''


_ONE = textwrap.dedent(
    """
    import sys

    sys.path.insert(0, sys.argv.pop(1))
    sys.argv[0] = "doit"
    from doit.doit_cmd import DoitMain

    from tests.support.forked import use_no_workers

    use_no_workers()
    sys.exit(DoitMain().run(sys.argv[1:]))
    """
)


class OneProcess(Bench):
    """A bench that runs doit in a new process without workers: a fork would not see plugins."""

    def doit(self, *arguments: str, timeout: float = 300, **environment: str) -> int:
        return self.process(*arguments, timeout=timeout, **environment)

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-c", _ONE, str(REPOSITORY), *arguments]


def bench_for(root: Path, configs: dict[str, dict[str, Any]], kind: type[Bench] = Bench) -> Bench:
    """Make a workspace with the model `small` and these configs.

    `configs` maps each package name to its config without `model`.
    """
    (root / "models").mkdir(parents=True)
    (root / "partition_configs").mkdir()
    (root / "dodo.py").write_text("from pipeline.tasks import *\n")
    (root / "models" / "small.py").write_text(MODEL)
    for package, config in configs.items():
        text = yaml.safe_dump({"model": "small", **config}, sort_keys=False)
        (root / "partition_configs" / f"{package}.yaml").write_text(text)
    return kind(root)


def both(**method: Any) -> dict[str, Any]:
    """Return a config with the same settings for both methods."""
    return {"methods": {"features": method, "classify": method}}


def manifest_of(bench: Bench, package: str) -> dict[str, Any]:
    return json.loads(bench.bytes_of(package, "manifest.json"))


def check_delegated(bench: Bench, package: str, backend_id: str, least: float) -> None:
    """Check that this backend takes at least this share (0 to 1) of each method's nodes."""
    for name, facts in manifest_of(bench, package)["methods"].items():
        counts = facts["delegation"]
        assert backend_id in counts["partitions"], (name, counts)
        assert counts["delegated_nodes"] / counts["nodes"] >= least, (name, counts)


_AGAIN = textwrap.dedent(
    """
    import os
    import sys
    from pathlib import Path

    root, repository, joint, *packages = sys.argv[1:]
    sys.path.insert(0, repository)
    from tests.support.bench import Bench
    from tests.support.joint import joint_call

    from pipeline.plan.plan import Plan
    from pipeline.store.store import Store
    from pipeline.store.workspace import Workspace

    tasks = [f"lower:{package}" for package in packages]
    bench = Bench(Path(root))
    cold = str(bench.root / ".empty-store")
    assert bench.doit("-a", *tasks, timeout=600, PTE_PIPELINE_STORE=cold) == 0, bench.output
    plan = Plan(Workspace(bench.root, Store(Path(cold)), 1))  # exported with this hash seed
    for package in joint.split():  # in a fork each, since a backend may remember what it made
        if os.fork() == 0:
            Path(f"{package}-joint.pte").write_bytes(joint_call(plan, package).buffer)
            os._exit(0)
        os.wait()
    """
)


def check_same_bytes(bench: Bench, joint: Collection[str], *others: str) -> None:
    """Check the files against a build without a cache, in another process with another hash seed.

    The first packages are also checked against ExecuTorch's joint call.
    """
    packages = (*joint, *others)
    before = {package: bench.bytes_of(package, f"{package}.pte") for package in packages}
    folders = str(bench.root), str(REPOSITORY)
    seed = {**os.environ, "PYTHONHASHSEED": "7"}
    words = "-c", _AGAIN, *folders, " ".join(joint), *packages
    done = run_python(*words, cwd=bench.root, env=seed, timeout=900, merged=True)
    assert done.returncode == 0, done.stdout
    for package in packages:
        assert bench.bytes_of(package, f"{package}.pte") == before[package], package
    for package in joint:
        assert (bench.root / f"{package}-joint.pte").read_bytes() == before[package], package


def check_fresh_checkout_hits(bench: Bench, root: Path, *packages: str) -> None:
    """Check that another checkout takes everything from the store and compiles nothing."""
    other = bench_for(root, {})
    shutil.copytree(bench.root / "models", other.root / "models", dirs_exist_ok=True)
    for package in packages:
        config = (bench.root / "partition_configs" / f"{package}.yaml").read_text()
        (other.root / "partition_configs" / f"{package}.yaml").write_text(config)
    tasks = [f"lower:{package}" for package in packages]
    code = other.doit(*tasks, PTE_PIPELINE_STORE=str(bench.store))
    assert code == 0, other.output
    assert set(other.outcomes().values()) == {"hit"}
    for package in packages:
        assert other.bytes_of(package, f"{package}.pte") == bench.bytes_of(
            package, f"{package}.pte"
        )


def check_ran(bench: Bench, package: str) -> None:
    """Check that validation executed every method."""
    record = json.loads(bench.bytes_of(package, "report.json"))
    programs = [m for m in record["methods"] if m["kind"] == "program"]
    assert record["ok"] and programs
    assert all(method["runs"] and not method["not_run"] for method in programs)


def check_not_run(bench: Bench, package: str, why: str) -> None:
    """Check that validation compared every method's declarations, and says why it ran none."""
    record = json.loads(bench.bytes_of(package, "report.json"))
    programs = [m for m in record["methods"] if m["kind"] == "program"]
    assert record["ok"] and programs
    assert all(why in method["not_run"] and not method["runs"] for method in programs)
    assert "not run" in bench.bytes_of(package, "report.md").decode()


def plan_of(bench: Bench) -> Plan:
    return Plan(Workspace(bench.root, Store(bench.store), 1))
