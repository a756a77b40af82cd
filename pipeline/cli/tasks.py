"""The doit tasks of a workspace. A `dodo.py` needs one line: `from pipeline.cli.tasks import *`.

export:<model>, quantize:<package>/<method>, compile:<package>/<method>, lower:<package> and
validate:<package>. `lower` has its compile tasks as setup tasks, and those their quantize tasks, so
doit looks at them only for a package, or a method, that is stale. `plan`, `explain` and `cache`
print, and change nothing but the store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

from doit.exceptions import InvalidDodoFile

from pipeline.cli.commands import (
    backends_command,
    baseline_command,
    cache_command,
    command,
    diff_command,
    explain_command,
    plan_command,
    report_command,
)
from pipeline.cli.console import Reporter
from pipeline.cli.doit_patch import install_into_doit
from pipeline.plan.actions import unit_name
from pipeline.plan.plan import Plan
from pipeline.run.install import clean
from pipeline.run.steps import Step, UpToDate
from pipeline.store.errors import PipelineError
from pipeline.store.workspace import open_workspace

__all__ = [
    "DOIT_CONFIG",
    "task_backends",
    "task_baseline",
    "task_cache",
    "task_compile",
    "task_diff",
    "task_explain",
    "task_export",
    "task_lower",
    "task_plan",
    "task_quantize",
    "task_rebuild",
    "task_report",
    "task_validate",
]

DOIT_CONFIG = {
    "default_tasks": ["lower", "validate"],
    "reporter": Reporter,
    "continue": True,
    "backend": "sqlite3",  # the one that two doit runs at once do not break
    "dep_file": ".doit.sqlite3",
    "verbosity": 2,
}

install_into_doit()


@cache
def plan_of(root: Path) -> Plan:
    """The plan of the workspace in which doit runs; doit has made its folder the current one."""
    try:
        workspace = open_workspace(root)
        workspace.build.mkdir(parents=True, exist_ok=True)
    except PipelineError as error:
        raise InvalidDodoFile(str(error)) from error
    except OSError as error:
        raise InvalidDodoFile(
            f"build/: {error.strerror}; it must be a folder that can be written"
        ) from error
    return Plan(workspace)


def _plan() -> Plan:
    return plan_of(Path.cwd())


def _task(step: Step, name: str, doc: str, **more: Any) -> dict[str, Any]:
    return {
        "name": quote(name, safe="/+"),  # doit refuses some characters; so do package names, later
        "doc": doc,
        "actions": [_needs_our_runner],
        "uptodate": [UpToDate(step)],
        **more,
    }


def _needs_our_runner() -> None:
    raise RuntimeError("pipeline tasks are run by pipeline.cli.runner.BatchRunner")


def _group(doc: str) -> dict[str, Any]:
    """Gives a group of tasks its line in `doit list`, also when it has no members."""
    return {"name": None, "doc": doc}


def task_export() -> Iterator[dict[str, Any]]:
    plan = _plan()
    yield _group("export the models whose source is a Python file")
    for model in plan.exporters:
        step = Step(plan, "export", model=model)
        yield _task(step, model, f"export the methods of {model}")


def task_quantize() -> Iterator[dict[str, Any]]:
    plan = _plan()
    yield _group("quantize methods, calibrated where that is asked for")
    for package in plan.packages:
        if plan.problems(package):
            continue
        exporter = plan.exporter(package)
        for method in plan.quantized(package):
            model = plan.model(package)
            step = Step(plan, "quantize", model=model, package=package, unit=(method,))
            yield _task(
                step,
                f"{package}/{method}",
                f"quantize {method} of {package}",
                task_dep=[f"export:{exporter}"] if exporter else [],
            )


def task_compile() -> Iterator[dict[str, Any]]:
    plan = _plan()
    yield _group("compile methods to objects")
    for package in plan.packages:
        if plan.problems(package):
            continue
        exporter, quantized = plan.exporter(package), plan.quantized(package)
        for unit in plan.units(package):
            step = Step(plan, "compile", model=plan.model(package), package=package, unit=unit)
            yield _task(
                step,
                f"{package}/{unit_name(unit)}",
                f"compile {unit_name(unit)} of {package}",
                task_dep=[f"export:{exporter}"] if exporter else [],
                setup=[f"quantize:{quote(package)}/{name}" for name in unit if name in quantized],
            )


def task_lower() -> Iterator[dict[str, Any]]:
    plan = _plan()
    yield _group("lower packages: export, compile and link what is stale")
    for package in plan.packages:
        faulty = bool(plan.problems(package))
        model = plan.model(package)
        step = Step(plan, "link", model=model, package=package)
        yield _task(
            step,
            package,
            f"lower {package}" + (f" to {model}.pte" if model else ""),
            setup=[]
            if faulty
            else [f"compile:{package}/{unit_name(u)}" for u in plan.units(package)],
            targets=[f"build/{package}/{model}.pte"] if model else [],
            clean=[_cleaning(plan, package)],
        )


def task_validate() -> Iterator[dict[str, Any]]:
    plan = _plan()
    yield _group("validate packages against their source programs")
    for package in plan.packages:
        step = Step(plan, "validate", model=plan.model(package), package=package)
        yield _task(step, package, f"validate {package}", task_dep=[f"lower:{quote(package)}"])


def task_plan() -> dict[str, Any]:
    return command(
        "plan",
        "what a run would do, and why: plan [--resolved] [package ...]",
        lambda words, resolved: plan_command(_plan(), words, resolved),
        {"resolved": "print what each method finally gets instead, and where that was written"},
    )


def task_explain() -> dict[str, Any]:
    return command(
        "explain",
        "why an action is current or not: explain <package>[/<method>] ...",
        lambda words: explain_command(_plan(), words),
    )


def task_backends() -> dict[str, Any]:
    return command(
        "backends",
        "the backends that methods can be lowered to: backends [name ...]",
        backends_command,
    )


def task_baseline() -> dict[str, Any]:
    return command(
        "baseline",
        "accept the present figures of packages: baseline [package ...]",
        lambda words: baseline_command(_plan(), words),
    )


def task_diff() -> dict[str, Any]:
    return command(
        "diff",
        "what tells builds apart: diff [--markdown] [<revision or manifest>] [package ...]",
        lambda words, markdown: diff_command(_plan(), words, markdown),
        {"markdown": "write Markdown, for a pull request"},
    )


def task_rebuild() -> dict[str, Any]:
    return command(
        "rebuild",
        "compile again without any cache, and compare bytes: rebuild [package ...]",
        _rebuild,
    )


def _rebuild(words: list[str]) -> Iterator[str]:
    from pipeline.cli.verbs.rebuild import rebuild  # joblib, which a no-op run does without

    yield from rebuild(_plan(), words)


def task_report() -> dict[str, Any]:
    return command(
        "report",
        "render the reports of the last validation again: report [package ...]",
        lambda words: report_command(_plan(), words),
    )


def task_cache() -> dict[str, Any]:
    return command(
        "cache",
        "the store: cache stats | verify | gc",
        lambda words: cache_command(_plan().workspace.store, words),
    )


def _cleaning(plan: Plan, package: str) -> Callable[[bool], None]:
    def remove_what_was_built(dryrun: bool) -> None:
        for name in clean(plan.workspace, package, dryrun):
            print(f"lower:{package} - removing {name}")

    return remove_what_was_built
