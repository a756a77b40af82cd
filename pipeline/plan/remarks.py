"""Remarks: what is no mistake, and is hardly meant.

They are told in each run, since what is ignored without a word is taken for done: a `target` that
is nearly another, files in `passes/`, `operators/` and `targets/` that nothing uses, and a module
that the package of this build hides.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from pipeline.config.target_labels import KNOWN_LABELS, near_labels
from pipeline.plan.code_files import CodeFiles, find_unread_targets
from pipeline.plan.plan import Plan
from pipeline.store.errors import Problem, did_you_mean, listed
from pipeline.store.workspace import TARGETS, target_file

_ON_PURPOSE = "`validate: {gates: {runs_on: []}}` says that it is a label alone"


def find_remarks(plan: Plan) -> list[Problem]:
    """Return the remarks about a workspace, sorted by file."""
    files = CodeFiles(plan)
    remarks = [
        *_find_strange_targets(plan),
        *files.find_unused(),
        *find_unread_targets(plan),
    ]
    remarks += _find_hidden_modules(plan.workspace.root)
    broken = {problem.file for problem in files.find_broken()}
    remarks = [remark for remark in remarks if remark.file not in broken]
    return sorted(
        dict.fromkeys(remarks),
        key=lambda remark: (remark.file, remark.line, remark.what),
    )


def find_broken_files(plan: Plan) -> list[Problem]:
    """Return the mistakes in files of code, whether or not a config names them."""
    return list(CodeFiles(plan).find_broken())


def _find_hidden_modules(root: Path) -> Iterator[Problem]:
    """Yield a workspace's own module `pipeline`: all its code is imported beside this package."""
    package = Path(__file__).resolve().parents[1]
    for place, name in (
        (root / "pipeline", "pipeline/"),
        (root / "pipeline.py", "pipeline.py"),
    ):
        is_module = place.is_file() or any(place.glob("*.py"))
        if is_module and place.resolve() != package:
            remark = (
                "is hidden here: `import pipeline` means the package of pte-pipeline"
            )
            yield Problem(name, "", remark, "rename it if models or passes import it")


def _find_strange_targets(plan: Plan) -> Iterator[Problem]:
    """Yield the labels without a file, of packages that are held to no target."""
    summaries = {package: plan.configs.summary(package) for package in plan.packages}
    labels = {
        package: summary.label
        for package, summary in summaries.items()
        if summary and summary.label
    }
    if not labels:
        return
    files = {path.stem for path in (plan.workspace.root / TARGETS).glob("*.yaml")}
    counts = Counter(labels.values())
    for package, label in labels.items():
        if label not in files and (remark := _describe(label, files, counts)):
            mistake, remedy = remark
            yield plan.document(package).problem(
                "target",
                mistake,
                f"{remedy}; {_ON_PURPOSE}",
            )


def _describe(
    label: str, files: set[str], counts: Counter[str]
) -> tuple[str, str] | None:
    """Return what is strange about a label that is no file, and what may be meant."""
    if files:
        mistake = f"there is no {target_file(label)}, so no runtime is checked"
        near = near_labels(label, [*sorted(files)])
        if near:
            return (
                mistake,
                f"did you mean '{near[0]}'? known: {listed(sorted(files), 10)}",
            )
        return mistake, did_you_mean(label, sorted(files), 10)
    if label in KNOWN_LABELS:
        return None
    common = []
    for candidate, count in counts.most_common():
        if count >= counts[label]:
            common.append(candidate)
    near = near_labels(label, [*common, *KNOWN_LABELS])
    if not near:
        return None
    users = counts[near[0]]
    source = ""
    if users:
        source = f", as {users} of the packages"
    return f"'{label}' looks misspelled", f"did you mean '{near[0]}'{source}?"
