"""Makes packages of collected cases, and compares this pipeline with the joint call on each.

A package holds the cases of some test files, as methods of one PT2 archive. ExecuTorch's call is
made as by a user, on the programs in memory, with no code of this pipeline; cases that it refuses
are left out. Then `doit` builds and validates the package in a separate workspace.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any

import executorch.exir
from executorch.exir import EdgeCompileConfig
from torch import SymInt
from torch.export import ExportedProgram
from torch.export.pt2_archive._package import load_pt2, package_pt2
from torch.utils._pytree import tree_leaves

from pipeline.program.archive import save_programs
from pipeline.program.archive_facts import describe_archive
from tests.support.bench import Bench
from tests.support.forked import last_line, run_in_fork, warm_up
from tests.upstream.collect import Case, collect
from tests.upstream.faults import explain

to_edge_transform_and_lower = executorch.exir.to_edge_transform_and_lower  # before `collect`

LOWERED, REFUSED, LOST = "lowered by both", "refused by both", "lowered by upstream only"
NO_CASE = "no case, since its test stops before, or lowers several programs"
BROKEN = "a package that could not be compared"
EXPECTED = "expected.pte"  # from the joint call
READ_BACK = "expected-read-back.pte"  # from the joint call on what torch reads back
EQUAL, OTHER = "bytes equal", "other bytes"
VALIDATED, CAUGHT, ALARM = "validated", "caught for a known fault", "failed, no known fault"
UNJUDGED, UNRUN = "not judged", "not run"


@dataclass(frozen=True)
class Found:
    """The outcome of one case.

    Attributes:
        lowering: LOWERED, REFUSED, LOST, NO_CASE or BROKEN.
        bytes: EQUAL or OTHER, for its package; "" if a method was lost.
        reason: why one of the two didn't lower it.
        judged: whether it was validated.
        short: the verdict on its lowering, if that is neither passed nor failed.
        failures: the failures of its validation.
        culprits: the operator at each place where it goes wrong, and the kernel or backend there.
    """

    package: str
    case: str
    lowering: str
    bytes: str = ""
    reason: str = ""
    judged: bool = False
    short: str = ""
    failures: Sequence[str] = ()
    culprits: Sequence[Sequence[str]] = ()

    @cached_property
    def fault(self) -> str:
        return explain(self.failures, self.culprits, self.case)

    @property
    def verdict(self) -> str:
        if not self.judged:
            return ""
        if not self.failures:
            return self.short or VALIDATED
        return CAUGHT if self.fault else ALARM

    @property
    def words(self) -> list[str]:
        """Return the categories that it counts towards."""
        return [word for word in (self.lowering, self.bytes, self.verdict) if word]

    @property
    def bad(self) -> bool:
        return bool({LOST, BROKEN, OTHER, ALARM} & set(self.words))


def compare(
    files: Sequence[Path], flow: str, folder: Path, name: str, select: str = "", run: bool = True
) -> list[Found]:
    """Compare the cases of test files.

    There is one package for each set of edge settings; it is validated if `run`. Each step is a
    fork of this process, since ExecuTorch's calls have side effects and can crash.
    """
    warm_up()
    folder.mkdir(parents=True, exist_ok=True)
    for left in folder.glob(f"{name}-[0-9]*/"):  # left by an interrupted run
        shutil.rmtree(left)
    log = folder / f"{name}.log"
    if run_in_fork(lambda: _write_packages(*collect(files, flow, select), folder, name), log):
        raise RuntimeError(f"{name}: {last_line(log)}; {log} says more")
    failed = json.loads((folder / f"{name}.json").read_text())
    found = [Found(f"{name}-0", test, NO_CASE, reason=why) for test, why in failed.items()]
    for root in sorted(folder.glob(f"{name}-[0-9]*/")):
        found += _compare_package(root, run)
        shutil.rmtree(root / ".store", ignore_errors=True)
    return found


def _write_packages(
    cases: Sequence[Case], failed: Mapping[str, str], folder: Path, name: str
) -> None:
    """Write a workspace for each group of cases, with the joint call's results. Runs in a fork."""
    (folder / f"{name}.json").write_text(json.dumps(failed))
    ordered = sorted(_unique(cases, folder / f"{name}.pt2"), key=lambda case: str(case.edge))
    for number, (_, own) in enumerate(groupby(ordered, key=lambda case: str(case.edge))):
        _write_package({case.name: case for case in own}, folder / f"{name}-{number}")


def _unique(cases: Sequence[Case], scratch: Path) -> list[Case]:
    """Leave out cases that lower a program of the same digest in the same way."""
    seen, found = set(), []
    for case in cases:
        _write_archive({"forward": case.program}, scratch)
        digest = describe_archive(scratch).programs[0].program
        way = digest, str(case.options), str(case.edge), bool(case.partitioners)
        if way not in seen:
            seen.add(way)
            found.append(case)
    scratch.unlink(missing_ok=True)
    return found


def _write_package(cases: Mapping[str, Case], root: Path) -> None:
    (root / "models").mkdir(parents=True)
    (root / "partition_configs").mkdir()
    refused = _find_refused(cases, root)
    if refused:
        cases = {name: case for name, case in cases.items() if name not in refused}
        if cases and _find_refused(cases, root):
            raise RuntimeError(f"{root}: parts of the cases are lowered, and not all at once")
    (root / "refused.json").write_text(json.dumps(refused, indent=1))
    if cases:
        programs = {name: case.program for name, case in cases.items()}
        _write_archive(programs, root / "models" / "cases.pt2")
        write_config(root, {name: _method_config(case) for name, case in cases.items()})
        if any(map(_is_symbolic, programs.values())):
            run_in_fork(lambda: _write_joint_of_archive(cases, root), root / "archive.log")


def _write_archive(programs: Mapping[str, ExportedProgram], path: Path) -> None:
    """Write programs as a user would.

    If torch has no name for one of their containers, write them like an exporter's programs:
    without example inputs.
    """
    try:
        package_pt2(path, exported_programs=dict(programs))
    except NotImplementedError:
        save_programs(programs, path)


def _find_refused(cases: Mapping[str, Case], root: Path) -> dict[str, str]:
    """Return why the joint call refuses some cases, found by bisection.

    Results of calls that refuse no case are kept.
    """
    log = root / "joint.log"
    if not run_in_fork(lambda: _write_joint(cases, root / EXPECTED), log):
        return {}
    names = list(cases)
    if len(names) == 1:
        return {names[0]: last_line(log)}
    halves = names[: len(names) // 2], names[len(names) // 2 :]
    found = [_find_refused({name: cases[name] for name in half}, root) for half in halves]
    return found[0] | found[1]


def _write_joint(cases: Mapping[str, Case], path: Path) -> None:
    """Lower cases with ExecuTorch's single call, in a fork, since this consumes the programs."""
    edge = next(iter(cases.values())).edge
    lowered = to_edge_transform_and_lower(
        {name: case.program for name, case in cases.items()},
        partitioner={name: list(case.partitioners) for name, case in cases.items()},
        compile_config=EdgeCompileConfig(**edge),
    )
    path.write_bytes(lowered.to_executorch().buffer)


def _write_joint_of_archive(cases: Mapping[str, Case], root: Path) -> None:
    """Lower the programs that torch reads back from the archive, if it can. Runs in a fork.

    They can differ from those in memory. For `(n**2)//n` torch then knows another bound, so
    ExecuTorch plans memory differently. And a size with only one possible value, as convolutions
    leave in a quantized ShuffleNet, becomes an integer, so the input's shape is static.
    """
    read = load_pt2(str(root / "models" / "cases.pt2")).exported_programs
    _write_joint({n: replace(case, program=read[n]) for n, case in cases.items()}, root / READ_BACK)


def _is_symbolic(program: ExportedProgram) -> bool:
    """Return whether a tensor of a program has a size that isn't an integer."""
    values = [node.meta.get("val") for node in program.graph.nodes]
    sizes = [getattr(leaf, "shape", ()) for leaf in tree_leaves(values)]
    return any(isinstance(size, SymInt) for shape in sizes for size in shape)


def _method_config(case: Case) -> dict[str, Any]:
    partitioners = [
        {"xnnpack": _spell(options)} if options else "xnnpack" for options in case.options
    ]
    edge = {name.removeprefix("_"): value for name, value in case.edge.items()}
    # Its tests also lower programs that a backend must not take.
    return {"partitioners": partitioners, "edge": edge, "allow_none": True}


def _spell(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return a partitioner's keyword arguments in the form of a config."""
    given = {name: value for name, value in options.items() if value is not None}
    for name, spell in (
        ("config_precisions", lambda each: each.name.lower()),
        ("configs", lambda each: each.__name__),
    ):
        if name in given:
            value = given[name]
            given[name] = list(map(spell, value if isinstance(value, list) else [value]))
    return given


def write_config(root: Path, methods: Mapping[str, Any]) -> None:
    config = {
        "model": "cases",
        "methods": methods,
        "emit": {"memory_planning": {"share_mutable_buffers": False}},  # the models are unrelated
        "validate": {"latency": {"seconds": 0}},
    }
    (root / "partition_configs" / "cases.yaml").write_text(json.dumps(config, indent=1))
    (root / "dodo.py").write_text("from pipeline.tasks import *\n")


def _compare_package(root: Path, run: bool) -> list[Found]:
    refused = json.loads((root / "refused.json").read_text())
    found = [Found(root.name, name, REFUSED, reason=why) for name, why in refused.items()]
    config = root / "partition_configs" / "cases.yaml"
    if not config.exists():
        return found
    methods, bench = json.loads(config.read_text())["methods"], Bench(root)
    bench.doit("lower", timeout=3600)
    (root / "lower.log").write_text(bench.output)
    pte = root / "build" / "cases" / "cases.pte"
    if not pte.exists():
        return found + _find_lost(bench, methods)
    joint = [root / name for name in (EXPECTED, READ_BACK) if (root / name).exists()]
    same = EQUAL if any(pte.read_bytes() == path.read_bytes() for path in joint) else OTHER
    if not run:
        return found + [Found(root.name, name, LOWERED, same) for name in methods]
    bench.doit("validate", timeout=7200)
    if not (root / "build" / "cases" / "report.json").exists():  # a method ended the process
        bench.process("-n", "1", "validate", timeout=7200)
    (root / "validate.log").write_text(bench.output)
    return found + _find_judged(root, methods, same)


def _find_lost(bench: Bench, methods: Iterable[str]) -> list[Found]:
    actions = {a["method"]: a for a in bench.actions()} if (bench.root / "build").exists() else {}
    found = []
    for name in methods:
        lost = name not in actions or actions[name]["outcome"] == "failed"
        reason = _told(bench.output, name) if lost else ""
        found.append(Found(bench.root.name, name, LOST if lost else LOWERED, reason=reason))
    return found


def _find_judged(root: Path, methods: Iterable[str], same: str) -> list[Found]:
    report = root / "build" / "cases" / "report.json"
    judged = json.loads(report.read_text())["methods"] if report.exists() else []
    verdicts = {each["method"]: each for each in judged}
    found = []
    for name in methods:
        own = verdicts.get(name, {"ok": False, "failures": [{"what": "has no verdict"}]})
        failures = list(dict.fromkeys(each["what"] for each in own["failures"]))
        culprits = [
            [each["operator"], each["kernel"] or each["backend"] or ""]
            for each in own.get("culprits") or ()
        ]
        made = Found(root.name, name, LOWERED, same, judged=True)
        if not own["ok"]:
            made = replace(made, failures=failures or ["no reason"], culprits=culprits)
        elif own["verdict"] in (UNJUDGED, UNRUN):
            made = replace(made, short=own["verdict"], reason=own["verdict_reason"])
        found.append(made)
    return found


def _told(output: str, method: str) -> str:
    """Return doit's message about a method, or its last line of output."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    own = [line for line in lines if re.search(rf"\b{method}\b", line)]
    return (own or lines or [""])[-1][:400]
