"""The workspaces of benchmarks: generates them and runs doit in them as a user would."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.measure import BenchmarkError, Run, run
from pipeline.plan.plan import Plan
from pipeline.run.install import install
from pipeline.store.digest import hash_json
from pipeline.store.entries import report_names
from pipeline.store.files import CONTENTS, CONTRACT, MANIFEST, SELECTION
from pipeline.store.store import Store
from pipeline.store.usage import read_usage
from pipeline.store.workspace import Workspace

if TYPE_CHECKING:
    from torch.export import ExportedProgram

REPOSITORY = Path(__file__).resolve().parent.parent
DODO = "from pipeline.tasks import *\n"
_SETTINGS = re.compile(r"(PTE_PIPELINE_|PYTHON)\w+")
_IMPORTED = re.compile(r"^import time:.*\| +(\S+)$", re.MULTILINE)


@dataclass(frozen=True)
class Sizes:
    """The sizes of the cases. `shipped` lists this repository's packages to build."""

    packages: int = 100
    methods: int = 20
    scale: tuple[int, int] = (1000, 10)  # packages and methods
    members: int = 200  # packages of a family
    turns: int = 7  # for runs under a second
    repeats: int = 3  # for runs of some seconds
    changed_of: int = 6  # methods, one of which changes
    layers: int = 24
    shipped: tuple[str, ...] = (
        "add_sub-xnnpack",
        "language_model",
        "language_model-int8",
        "router",
        "seq2seq",
        "seq2seq-int8",
        "speech",
        "vision",
        "vision-mixed",
        "vision-portable",
    )  # without vision-int8, which archives can't calibrate
    all_shipped: tuple[str, ...] = tuple(
        sorted(path.stem for path in (REPOSITORY / "partition_configs").glob("*.yaml"))
    )
    cold: tuple[str, ...] = ("vision", "seq2seq", "whisper_tiny", "t5")
    cold_repeats: int = 3
    retrained: tuple[str, ...] = (
        "language_model",
        "router",
        "seq2seq",
        "speech",
        "vision",
        "vision-mixed",
        "vision-portable",
        "whisper_tiny",
    )
    retrained_repeats: int = 3
    overhead: tuple[str, ...] = ("vision",)  # a shipped package that has no two equal partitions
    overhead_repeats: int = 7
    export_repeats: int = 2
    export_processes: int = 6
    adapters: int = 3
    cluster: tuple[str, ...] = ("router", "vision", "vision-portable")
    cluster_repeats: int = 5
    megabytes: int = 512  # size of the hashed file
    wide_megabytes: int = 64  # weights in the method that has little else
    weights: tuple[int, ...] = (512, 1024, 2048)  # MiB of weights per method
    decoders: tuple[str, ...] = ("6M",)
    constants: tuple[int, ...] = (500, 1000, 2000)  # of one method
    entries: int = 1_000_000  # results in a store
    growth: int = 1  # 0 for the sizes of CI


QUICK = Sizes(
    packages=10,
    methods=4,
    scale=(30, 4),
    members=30,
    turns=3,
    repeats=1,
    changed_of=3,
    layers=8,
    shipped=("router", "vision"),
    all_shipped=("vision-int8",),
    cold=("vision",),
    cold_repeats=1,
    retrained=("vision",),
    retrained_repeats=1,
    adapters=2,
    cluster=("router",),
    cluster_repeats=1,
    overhead=(),
    overhead_repeats=3,
    export_repeats=1,
    export_processes=1,
    megabytes=64,
    wide_megabytes=16,
    weights=(128,),
    constants=(20, 40, 80),
    entries=20_000,
    growth=0,
)


@dataclass(frozen=True)
class Checkout:
    """A workspace, and the store that its builds use."""

    root: Path
    store: Path

    @cached_property
    def environment(self) -> dict[str, str]:
        """Return an environment with the `pipeline` next to these benchmarks, and the store.

        Other settings are left out: a Python that may not write bytecode starts more slowly.
        """
        kept = {name: value for name, value in os.environ.items() if not _SETTINGS.fullmatch(name)}
        ours = {"PYTHONPATH": str(REPOSITORY), "PTE_PIPELINE_STORE": str(self.store)}
        return {**kept, **ours}

    def doit(self, *arguments: str) -> Run:
        return run([sys.executable, "-m", "doit", *arguments], self.root, self.environment)

    def imported(self, *arguments: str) -> set[str]:
        """Return the modules that a doit process imports, not counting its workers."""
        command = [sys.executable, "-X", "importtime", "-m", "doit", *arguments]
        imported = set(_IMPORTED.findall(run(command, self.root, self.environment).output))
        if "pipeline.tasks" not in imported:
            raise BenchmarkError("what doit imports can't be told")
        return imported

    def built(self, kind: str) -> list[str]:
        """Return the `package/method` of each action of a kind that the last run performed."""
        actions = json.loads((self.root / "build" / "run.json").read_text())["actions"]
        done = [a for a in actions if a["kind"] == kind and a["outcome"] == "built"]
        return sorted("/".join(filter(None, (a["package"], a["method"]))) for a in done)

    def preprocessed(self) -> tuple[int, int]:
        """Return how many partitions were store hits and misses, over all runs of the store."""
        usage = read_usage(Store(self.store)).get("preprocess")
        return (usage.hits, usage.misses) if usage else (0, 0)

    def files(self) -> dict[str, bytes]:
        """Return the packages' files, keyed by path in `build/`."""
        build = self.root / "build"
        found = sorted(build.glob("*/*.pt[de]"))
        return {str(path.relative_to(build)): path.read_bytes() for path in found}

    def fresh(self, root: Path) -> Checkout:
        """Make a copy without any build results."""
        left = shutil.ignore_patterns("build", ".doit.sqlite3*")
        return Checkout(Path(shutil.copytree(self.root, root, ignore=left)), self.store)


def quiet(imported: set[str]) -> bool:
    """Return whether a doit process avoided torch and workers.

    Starting a worker would have imported joblib.
    """
    return imported.isdisjoint({"torch", "executorch", "joblib"})


def new_checkout(root: Path, store: Path | None = None) -> Checkout:
    for folder in ("models", "partition_configs"):
        (root / folder).mkdir(parents=True)
    (root / "dodo.py").write_text(DODO)
    return Checkout(root, store or root / ".store")


def write_config(
    checkout: Checkout, package: str, model: str, methods: Iterable[str], family: str = ""
) -> None:
    lines = [f"model: {model}", "target: android-arm64"]
    lines += [f"family: {family}"] if family else []
    lines.append("methods:")
    lines += [f"  {method}:\n    partitioners: [xnnpack]" for method in methods]
    path = checkout.root / "partition_configs" / f"{package}.yaml"
    path.write_text("\n".join(lines) + "\n")


# Results of a finished build, without the hours of building


def finished_checkout(root: Path, packages: int, methods: int, family: str = "") -> Checkout:
    """Make packages, each with a separate model, in the state that `doit` leaves them in.

    Their sources, configs, keys and records are real; the content of their files is not. All belong
    to `family`, if it is given.
    """
    from benchmarks.models import Affine, exported, write_archive

    checkout = new_checkout(root)
    names = [f"method{number}" for number in range(methods)]
    archive = root / "model.pt2"
    write_archive(archive, {name: exported(Affine(i), 1, 8) for i, name in enumerate(names)})
    for number in range(packages):
        shutil.copyfile(archive, root / "models" / f"model{number}.pt2")
        write_config(checkout, f"package{number}", f"model{number}", names, family)
    archive.unlink()
    plan = plan_of(checkout)
    for finish in (_finish_link, _finish_validation):  # validation needs the links of all
        for package in plan.packages:
            finish(plan, package)
    plan.remember()
    return checkout


def _finish_link(plan: Plan, package: str) -> None:
    """Record the results of linking a package."""
    link = plan.link(package)
    assert link is not None
    records = dict.fromkeys((MANIFEST, CONTENTS, CONTRACT, SELECTION), "{}")
    _install(plan, link, {f"{link.key['file']}.pte": package, **records})


def _finish_validation(plan: Plan, package: str) -> None:
    validate = plan.validate(package)
    assert validate is not None
    facts = {
        "ok": True,
        "verdict": "passed",
        "allow": [],
        "methods": {},
        "sound": True,
        "complete": True,
        "measured": hash_json(validate.key["measured"]),
    }
    _install(plan, validate, dict.fromkeys(report_names(), "{}"), facts=facts)


def _install(plan: Plan, action: Any, contents: Mapping[str, str], **more: Any) -> None:
    store = plan.workspace.store
    files = {name: store.put(content.encode()) for name, content in contents.items()}
    result = {"files": files, **more}
    store.put_result(action.key, result)
    install(plan.workspace, action, result)


# The packages of this repository


def shipped_exporters(root: Path, packages: Sequence[str]) -> Checkout:
    """Make a workspace whose models are the repository's Python files that export."""
    checkout = new_checkout(root)
    _copy_configs(checkout, packages)
    for model in models_of(packages):
        shutil.copy(REPOSITORY / "models" / f"{model}.py", root / "models")
    return checkout


def shipped_archives(root: Path, packages: Sequence[str], store: Path) -> Checkout:
    """Make a workspace whose models have been exported to archives."""
    checkout = new_checkout(root, store)
    _copy_configs(checkout, packages)
    export_archives(checkout, packages)
    return checkout


def export_archives(checkout: Checkout, packages: Sequence[str], edition: int = 0) -> None:
    """Export the same programs in every edition of their source.

    Editions differ in path and line numbers, and so in the bytes of the archives.
    """
    from benchmarks.models import write_archive

    with tempfile.TemporaryDirectory() as folder:
        for model in models_of(packages):
            source = (REPOSITORY / "models" / f"{model}.py").read_text(encoding="utf-8")
            path = Path(folder) / f"{model}.py"  # its name identifies classes, as in an exporter
            path.write_text("#\n" * edition + source, encoding="utf-8")
            write_archive(checkout.root / "models" / f"{model}.pt2", _export(path))


def _export(exporter: Path) -> dict[str, ExportedProgram]:
    spec = importlib.util.spec_from_file_location(exporter.stem, exporter)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # the export of control flow looks it up
    spec.loader.exec_module(module)
    return {name: program for name, (program, _) in module.export_methods().items()}


def models_of(packages: Sequence[str]) -> list[str]:
    """Return the models of packages, which are named `<model>` or `<model>-<variant>`."""
    return sorted({package.partition("-")[0] for package in packages})


def _copy_configs(checkout: Checkout, packages: Sequence[str]) -> None:
    for package in packages:
        source = REPOSITORY / "partition_configs" / f"{package}.yaml"
        shutil.copy(source, checkout.root / "partition_configs")


def plan_of(checkout: Checkout) -> Plan:
    """Return the plan of a workspace, with the checkout's store and not the environment's."""
    return Plan(Workspace(checkout.root, Store(checkout.store), jobs=1))
