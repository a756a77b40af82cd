"""Changes every constant of every model, one at a time and all at once, and compares refit with a
cold compile, byte for byte.

    python -m tests.features.refit [NUMBER] [PACKAGE ...]

NUMBER is how many constants of each package are changed separately, drawn with a fixed seed; by
default all. The packages are the shipped ones and those of the sample workspaces. It prints how
often both gave the same bytes, how often refit said why it can't, and how often they differed,
which must be 0. A full run takes hours.
"""

from __future__ import annotations

import gc
import io
import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch
from torch.export.pt2_archive._package import load_pt2, package_pt2

from pipeline.features.exporters.export import export
from pipeline.features.quantization.perform import quantize_method
from pipeline.features.refit.refit import find_record, make_refit, why_never
from pipeline.features.refit.unit import CannotRefitError
from pipeline.features.speedups.patches import fast_lowering
from pipeline.plan.actions import Action
from pipeline.plan.plan import Plan
from pipeline.program.archive import load_program, save_programs
from pipeline.run.build.perform_compile import perform_compile
from pipeline.run.stages import Stages
from pipeline.store.digest import hash_json
from pipeline.store.errors import PipelineError
from pipeline.store.store import Store
from pipeline.store.workspace import Workspace
from tests.support.bench import REPOSITORY, SAMPLES

WORKSPACES = (REPOSITORY, SAMPLES / "pair", SAMPLES / "archives")
SAME, CANNOT, DIFFERENT = "same", "cannot", "DIFFERENT"


def packages() -> Iterator[tuple[Path, str]]:
    for root in WORKSPACES:
        for path in sorted((root / "partition_configs").glob("*.yaml")):
            if not path.stem.startswith("_"):
                yield root, path.stem


class Trial:
    """One package in a separate folder, whose model is an archive."""

    def __init__(self, root: Path, package: str, folder: Path) -> None:
        self.package, self.root = package, folder / "w"
        for name in ("models", "partition_configs"):
            shutil.copytree(root / name, self.root / name)
        for path in (self.root / "partition_configs").glob("*.yaml"):
            if path.stem != package and not path.stem.startswith("_"):
                path.unlink()
        self.workspace = Workspace(self.root, Store(folder / "store"), jobs=1)
        self.archives = self._write_archives()

    def _write_archives(self) -> list[Path]:
        """Replace the exporter by archives, and return those of the package's model."""
        plan = Plan(self.workspace)
        model = plan.model(self.package)
        exporter = self.root / "models" / f"{model}.py"
        if exporter.exists():
            action = plan.models.export(str(plan.export(self.package)))
            export(action, self.workspace, Stages())
            sources = Plan(self.workspace).methods(self.package).values()
            loaded = {
                s.entry: load_program(self.workspace.store.verified_path(s.content), s.entry)
                for s in sources
            }
            exporter.unlink()
            save_programs(loaded, str(exporter.with_suffix(".pt2")))
        found = self.root / "models" / str(model)
        return sorted(found.glob("*.pt2")) if found.is_dir() else [found.with_suffix(".pt2")]

    def plan(self) -> Plan:
        """Return a plan of the current archives, whose methods are quantized."""
        plan = Plan(replace(self.workspace))
        plan.check(self.package)
        for action in (plan.quantizes(self.package) or {}).values():
            if self.workspace.store.get(action.digest) is None:
                quantize_method(action, self.workspace, Stages())
        return plan

    def change(self, first: dict[Path, bytes], seed: int, only: tuple[str, str] | None = None):
        """Write the archives with other values in all constants, or in one (method and name)."""
        for path, data in first.items():
            programs = load_pt2(io.BytesIO(data)).exported_programs
            generator = torch.Generator().manual_seed(seed)
            done: set[int] = set()
            for entry, program in programs.items():
                for name, tensor in {**program.state_dict, **program.constants}.items():
                    if isinstance(tensor, torch.Tensor) and only in (None, (entry, name)):
                        _change(tensor, generator, done)
            package_pt2(str(path), exported_programs=programs)


def _change(tensor: torch.Tensor, generator: torch.Generator, done: set[int]) -> None:
    place = tensor.untyped_storage().data_ptr()
    if place in done or not tensor.numel():
        return
    done.add(place)
    with torch.no_grad():
        tensor = tensor.detach()
        if tensor.is_floating_point():
            noise = torch.rand(tensor.shape, generator=generator).to(tensor.dtype)
            tensor.mul_(1 + noise / 20).add_(noise / 100)
        else:  # values swap places, so they stay valid: indices, masks
            flat = tensor.reshape(-1)
            tensor.copy_(flat[torch.randperm(flat.numel(), generator=generator)].view_as(tensor))


def compiled(action: Action, workspace: Workspace) -> dict:
    """Return the result of compiling without any earlier result."""
    kept: list = []
    with fast_lowering(patches=True):
        perform_compile(action, workspace, Stages(), always=True, keep=lambda *r: kept.append(r))
    gc.collect()
    return kept[0][1]


def constants_of(archives: list[Path]) -> list[tuple[str, str]]:
    found = []
    for path in archives:
        for entry, program in load_pt2(str(path)).exported_programs.items():
            names = {**program.state_dict, **program.constants}.items()
            found += [(entry, n) for n, t in names if isinstance(t, torch.Tensor)]
    return found


def judge(action: Action, trial: Trial) -> tuple[str, str]:
    """Return how refit and a cold compile compare, and the reason if refit can't."""
    store = trial.workspace.store
    found = find_record(action, store)
    if found is None or not found.result["proven"]:
        return CANNOT, "another structure" if found is None else found.result["why"]
    try:
        ours = make_refit(action, found, trial.workspace)
    except CannotRefitError as why:
        return CANNOT, str(why)
    same = hash_json(ours) == hash_json(compiled(action, trial.workspace))
    return (SAME if same else DIFFERENT), ""


def run(root: Path, package: str, most: int | None, folder: Path) -> Counter:
    """Judge one package, and print the counts."""
    trial = Trial(root, package, folder)
    original = {path: path.read_bytes() for path in trial.archives}
    actions = trial.plan().compiles(package)
    if not constants_of(trial.archives):
        return Counter()
    if never := {a.method: why for a in actions if (why := why_never(a))}:
        print(package, never, flush=True)
    trial.change(original, 1)
    for action in trial.plan().compiles(package):
        with fast_lowering(patches=True):
            perform_compile(action, trial.workspace, Stages())
    first = {path: path.read_bytes() for path in trial.archives}
    names = constants_of(trial.archives)
    every = len(names)
    if most is not None and most < every:
        names = random.Random(package).sample(names, most)
    total: Counter = Counter()
    for number, only in enumerate([None, *names]):
        trial.change(first, 100 + number, only)
        for action in trial.plan().compiles(package):
            owners = {s.entry for s in action.inputs.sources.values()}
            if action.method in never or (only is not None and only[0] not in owners):
                continue
            verdict, why = judge(action, trial)
            total[verdict, "one" if only else "all"] += 1
            if verdict != SAME:
                print(f"  {package}/{action.method} {only}: {verdict} {why}", flush=True)
    print(package, f"{every} constants,", dict(total), flush=True)
    return total


def main(words: list[str]) -> int:
    torch.set_num_threads(1)
    most = int(words.pop(0)) if words and words[0].isdigit() else None
    total: Counter = Counter()
    for root, package in packages():
        if words and package not in words:
            continue
        with tempfile.TemporaryDirectory() as folder:
            try:
                total += run(root, package, most, Path(folder))
            except PipelineError as error:  # archives contain no inputs for calibration
                print(package, "is left out:", error, flush=True)
    print("all:", dict(total))
    return int(any(verdict == DIFFERENT for verdict, _ in total))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
