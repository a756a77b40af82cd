"""Lowers cases with ExecuTorch's joint call and with `doit`, and reports the outcome of each.

ExecuTorch's call is made as by a user, on the program in memory, with no code of this pipeline. The
archive of the same program is a package's model; `doit lower` builds the package.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import to_edge_transform_and_lower
from torch.export import ExportedProgram

from pipeline.program.archive import save_programs
from tests.support.bench import Bench
from tests.support.forked import last_line, run_in_fork, warm_up
from tests.support.quick_torch import make_torch_its_own
from tests.upstream.compare import EQUAL, LOST, LOWERED, OTHER, REFUSED

HERE, NO_PROGRAM = "lowered here only", "not exported by torch"
KNOWN, NOT_LOST = "lost on purpose", "lowered, though it is said to be lost"

_ERROR = re.compile(r"[\w.]+(Error|Exception)\b")
_DUNDER = "names between double underscores, which Python gives a meaning, are refused"
_UNREADABLE = "torch itself can't read the archive, whose keys hold `,`, `;` or parentheses"
LOST_ON_PURPOSE = {
    "names_long": "names of over 1,000 letters are refused",
    "names_dunder": _DUNDER,
    "buffer_dunder": _DUNDER,
    "names_commas": _UNREADABLE,
    "names_semicolon": _UNREADABLE,
    "names_paren": _UNREADABLE,
}


@dataclass(frozen=True)
class Found:
    """The outcome of one case.

    Attributes:
        words: the categories that it counts towards.
        upstream: why ExecuTorch's call refuses it, or "" if it doesn't.
        here: why this pipeline refuses it, or "" if it doesn't.
    """

    case: str
    words: tuple[str, ...]
    upstream: str = ""
    here: str = ""

    @property
    def bad(self) -> bool:
        return bool({LOST, OTHER, NO_PROGRAM, NOT_LOST} & set(self.words))

    def __str__(self) -> str:
        known = LOST_ON_PURPOSE.get(self.case, "") if KNOWN in self.words else ""
        reasons = ("upstream", self.upstream), ("here", self.here), ("known", known)
        told = "".join(f"\n    {who}: {why}" for who, why in reasons if why)
        return f"{self.case}: {', '.join(self.words)}{told}"


def compare(cases: Mapping[str, Callable[[], ExportedProgram]], root: Path) -> list[Found]:
    """Compare cases, each as a package of a workspace.

    Each is exported and lowered by ExecuTorch in a fork, since these calls have side effects and
    can crash. One more fork builds all packages.
    """
    warm_up()
    shutil.rmtree(root, ignore_errors=True)
    for folder in ("models", "partition_configs"):
        (root / folder).mkdir(parents=True)
    (root / "dodo.py").write_text("from pipeline.tasks import *\n")
    for name, make in cases.items():
        if not run_in_fork(lambda make=make, name=name: _write(make, name, root), _log(root, name)):
            # In some cases XNNPACK takes nothing, which ExecuTorch's call accepts silently.
            method = {"partitioners": ["xnnpack"], "allow_none": True}
            config = {"model": name, "methods": {"forward": method}}
            (root / "partition_configs" / f"{name}.yaml").write_text(json.dumps(config))
    bench = Bench(root)
    if any((root / "partition_configs").iterdir()):
        bench.doit("lower", timeout=3600)
    reasons = _reasons(bench)
    return [find(name, bench, reasons) for name in cases]


def _write(make: Callable[[], ExportedProgram], name: str, root: Path) -> None:
    """Export a case, lower it with ExecuTorch, and save its archive. Runs in a fork."""
    torch.manual_seed(0)
    program = make()
    (root / f"{name}.exported").touch()
    run_in_fork(
        lambda: _write_joint(program, expected_file(root, name)), root / f"{name}.upstream.log"
    )
    archive = root / "models" / f"{name}.pt2"
    try:
        with archive.open("wb") as file:
            save_programs({"forward": program}, file)
    except BaseException:
        archive.unlink()
        raise


def _write_joint(program: ExportedProgram, path: Path) -> None:
    """Lower a program with ExecuTorch's single call, in a fork, since this consumes it."""
    make_torch_its_own()
    lowered = to_edge_transform_and_lower(
        {"forward": program}, partitioner={"forward": [XnnpackPartitioner()]}
    )
    path.write_bytes(lowered.to_executorch().buffer)


def find(name: str, bench: Bench, reasons: Mapping[str, str]) -> Found:
    """Return the outcome of a case, judging by the files in its workspace."""
    root = bench.root
    if not (root / f"{name}.exported").exists():
        return Found(name, (NO_PROGRAM,), _last_error(_log(root, name)))
    expected, made = expected_file(root, name), root / "build" / name / f"{name}.pte"
    upstream = "" if expected.exists() else _last_error(root / f"{name}.upstream.log")
    here = "" if made.exists() else reasons.get(name) or _last_error(_log(root, name))
    if here:
        words = [REFUSED if upstream else KNOWN if name in LOST_ON_PURPOSE else LOST]
    elif upstream:
        words = [HERE]
    else:
        words = [LOWERED, EQUAL if made.read_bytes() == expected.read_bytes() else OTHER]
        words += [NOT_LOST] if name in LOST_ON_PURPOSE else []
    return Found(name, tuple(words), upstream, here)


def _reasons(bench: Bench) -> dict[str, str]:
    """Return why each package wasn't built; if doit didn't end, the last line of its output."""
    if not (bench.root / "build" / "run.json").exists():
        folder = bench.root / "partition_configs"
        return {path.stem: bench.output[-400:].strip() for path in folder.iterdir()}
    return {each["package"]: each["error"][:400] for each in bench.actions() if each["error"]}


def _last_error(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()
    return next((line[:300] for line in reversed(lines) if _ERROR.match(line)), last_line(log))


def _log(root: Path, name: str) -> Path:
    return root / f"{name}.log"


def expected_file(root: Path, name: str) -> Path:
    """Return the path of the file that ExecuTorch's call makes of a case."""
    return root / f"{name}.expected.pte"
