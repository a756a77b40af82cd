"""The doit tasks of a workspace. A `dodo.py` needs one line: `from pipeline.tasks import *`.

export:<model>, quantize:<package>/<method>, compile:<package>/<method>, lower:<package> and
validate:<package>. `lower` has its compile tasks as setup tasks, and those their quantize tasks, so
doit looks at them only for a package, or a method, that is stale. The verbs, such as `plan`, are
tasks rather than commands of doit, since a command would be there in every doit project beside
which this package is installed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import quote

from doit.exceptions import InvalidDodoFile, TaskFailed

from pipeline.cli.console import Reporter
from pipeline.cli.doit_patch import install_into_doit
from pipeline.cli.up_to_date import UpToDate
from pipeline.plan.actions import unit_name
from pipeline.plan.plan import Plan
from pipeline.run.action_task import ActionTask
from pipeline.run.install import clean
from pipeline.store.errors import PipelineError
from pipeline.store.workspace import open_workspace

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


def _task(task: ActionTask, name: str, doc: str, **more: Any) -> dict[str, Any]:
    return {
        "name": quote(name, safe="/+"),  # doit refuses some characters; so do package names, later
        "doc": doc,
        "actions": [_needs_our_runner],
        "uptodate": [UpToDate(task)],
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
        task = ActionTask(plan, "export", model=model)
        yield _task(task, model, f"export the methods of {model}")


def task_quantize() -> Iterator[dict[str, Any]]:
    plan = _plan()
    yield _group("quantize methods, calibrated where that is asked for")
    for package in plan.packages:
        if plan.problems(package):
            continue
        exporter = plan.exporter(package)
        for method in plan.quantized(package):
            model = plan.model(package)
            task = ActionTask(plan, "quantize", model=model, package=package, unit=(method,))
            yield _task(
                task,
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
            name = unit_name(unit)
            task = ActionTask(plan, "compile", plan.model(package), package, unit)
            yield _task(
                task,
                f"{package}/{name}",
                f"compile {name} of {package}",
                task_dep=[f"export:{exporter}"] if exporter else [],
                setup=[f"quantize:{quote(package)}/{each}" for each in unit if each in quantized],
            )


def task_lower() -> Iterator[dict[str, Any]]:
    plan = _plan()
    yield _group("lower packages: export, compile and link what is stale")
    for package in plan.packages:
        faulty = bool(plan.problems(package))
        model = plan.model(package)
        task = ActionTask(plan, "link", model=model, package=package)
        yield _task(
            task,
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
        task = ActionTask(plan, "validate", model=plan.model(package), package=package)
        yield _task(task, package, f"validate {package}", task_dep=[f"lower:{quote(package)}"])


def task_plan() -> dict[str, Any]:
    doc = "what a run would do, and why: plan [--resolved] [package ...]"
    help_ = "print what each method finally gets instead, and where that was written"
    return _verb("plan", doc, resolved=help_)


def task_explain() -> dict[str, Any]:
    return _verb("explain", "why an action is current or not: explain <package>[/<method>] ...")


def task_backends() -> dict[str, Any]:
    return _verb("backends", "the backends that methods can be lowered to: backends [name ...]")


def task_baseline() -> dict[str, Any]:
    return _verb("baseline", "accept the present figures of packages: baseline [package ...]")


def task_diff() -> dict[str, Any]:
    doc = "what tells builds apart: diff [--markdown] [<revision or manifest>] [package ...]"
    return _verb("diff", doc, markdown="write Markdown, for a pull request")


def task_rebuild() -> dict[str, Any]:
    doc = "compile again without any cache, and compare bytes: rebuild [package ...]"
    return _verb("rebuild", doc)


def task_report() -> dict[str, Any]:
    doc = "render the reports of the last validation again: report [package ...]"
    return _verb("report", doc)


def task_cache() -> dict[str, Any]:
    return _verb("cache", "the store: cache stats | verify | gc")


def _verb(name: str, doc: str, **flags: str) -> dict[str, Any]:
    """Return the doit task of a verb, which is never up to date.

    Args:
        flags: the help of each flag (`--name`), which may stand before or after words.
    """

    def action(words: list[str], **given: bool) -> TaskFailed | None:
        run = import_module(f"pipeline.cli.verbs.{name}").run  # much that other tasks do without
        said = {flag: given[flag] or f"--{flag}" in words for flag in flags}
        rest = [word for word in words if word not in {f"--{flag}" for flag in flags}]
        try:
            for line in run(_plan(), rest, **said):
                print(line, flush=True)
        except PipelineError as error:
            return TaskFailed(f"{name}: {error}")
        except BrokenPipeError:  # whoever reads has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return None

    return {
        "basename": name,
        "doc": doc,
        "actions": [action],
        "params": [
            {"name": flag, "long": flag, "type": bool, "default": False, "help": text}
            for flag, text in flags.items()
        ],
        "pos_arg": "words",
        "verbosity": 2,
        "meta": {"command": True},
    }


def _cleaning(plan: Plan, package: str) -> Callable[[bool], None]:
    def remove_what_was_built(dryrun: bool) -> None:
        for name in clean(plan.workspace, package, dryrun):
            print(f"lower:{package} - removing {name}")

    return remove_what_was_built


__all__ = ["DOIT_CONFIG", *(name for name in globals() if name.startswith("task_"))]
