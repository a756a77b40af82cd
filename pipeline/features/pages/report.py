"""`doit report`: renders the reports of the last validation, and those over all packages, again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pipeline.cli.verbs import known_packages
from pipeline.moments import call_all
from pipeline.plan.plan import Plan
from pipeline.report.render import write_reports
from pipeline.store.errors import PipelineError


def run(plan: Plan, words: Sequence[str]) -> Iterator[str]:
    """Yield the path of each file written. Raises PipelineError if one can't be written."""
    workspace = plan.workspace
    try:
        for package in known_packages(plan, words):
            written = write_reports(workspace, package)
            if words and not written:
                yield f"{package}: not validated yet; `doit validate:{package}` does"
            yield from (str(path.relative_to(workspace.root)) for path in written)
        for written in call_all("write_overview", workspace, plan.configs.packages):
            yield from (str(path.relative_to(workspace.root)) for path in written)
    except OSError as error:
        raise PipelineError(f"{error.filename}: {error.strerror}") from error
