"""Remarks: what is no mistake, and is hardly meant.

They are told in each run, since what is ignored without a word is taken for done: files in
`passes/` and `operators/` that nothing uses, a module that the package of this build hides, and
what features remark.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pipeline.moments import call_all
from pipeline.plan.code_files import CodeFiles
from pipeline.plan.plan import Plan
from pipeline.store.errors import Problem


def find_remarks(plan: Plan) -> list[Problem]:
    """Return the remarks about a workspace, sorted by file."""
    files = CodeFiles(plan)
    remarks = [*files.find_unused(), *_find_hidden_modules(plan.workspace.root)]
    for remarks_of_feature in call_all("remarks", plan):
        remarks += remarks_of_feature
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
