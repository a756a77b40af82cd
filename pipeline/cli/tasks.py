"""The doit tasks of a workspace. A `dodo.py` needs one line: `from pte_pipeline.tasks import *`.

The tasks are export:<model>, quantize:<package>/<method>, compile:<package>/<method>,
lower:<package> and validate:<package>. `lower` has its compile tasks as setup tasks, and those have
their quantize tasks, so doit visits them only for stale packages or methods. Verbs such as `plan`
are commands, not tasks: see `pipeline.cli.workspace_commands`.
"""

from __future__ import annotations

import errno
import gc
import os
from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from itertools import chain
from pathlib import Path
from typing import Any

from doit.loader import generate_tasks, load_tasks
from doit.task import Task

from pipeline.cli.ahead import prefetch_exports
from pipeline.cli.commands import GROUPS
from pipeline.cli.console import Reporter
from pipeline.cli.doit_link import MakeTasks, UpToDate
from pipeline.cli.grammar import quoted
from pipeline.cli.runner import FAMILY
from pipeline.cli.selection import ALL, Selection
from pipeline.cli.terminal import guard_standard_streams
from pipeline.moments import call_all
from pipeline.plan.actions import unit_name
from pipeline.plan.plan import Plan
from pipeline.plan.tasks import ActionTask
from pipeline.run.install import clean, find_orphans
from pipeline.store.errors import PipelineError, describe_error
from pipeline.store.visible import one_line
from pipeline.store.workspace import open_workspace

DOIT_CONFIG = {
    "default_tasks": ["lower", "validate"],
    "reporter": Reporter,
    "continue": True,
    "backend": "sqlite3",  # the only one that two concurrent doit runs don't corrupt
    "dep_file": ".doit.sqlite3",
    "verbosity": 2,
}

# Tasks live until doit ends; collecting garbage among thousands takes a fifth of a no-op run.
gc.set_threshold(1_000_000)
_selection = ALL
_Creator = Callable[[], Iterator[dict[str, Any]]]


def select(selection: Selection) -> None:
    """Restrict the tasks to a selection of packages."""
    global _selection
    _selection = selection


@cache
def _plan_at(root: Path) -> Plan:
    return Plan(open_workspace(root))


def make_build_folder(plan: Plan) -> None:
    """Make the folder that a run writes to. Raises PipelineError."""
    build = plan.workspace.build
    try:
        build.mkdir(parents=True, exist_ok=True)
        if not os.access(build, os.W_OK):
            is_read_only = os.statvfs(build).f_flag & os.ST_RDONLY
            why = errno.EROFS if is_read_only else errno.EACCES
            raise OSError(why, os.strerror(why))
    except OSError as error:
        needed = "it must be a writable folder, or a link to one elsewhere"
        raise PipelineError(f"build/: {error.strerror}; {needed}") from error


def current_plan() -> Plan:
    """Return the plan of the workspace in which doit runs; doit has changed to its folder."""
    return _plan_at(Path.cwd())


guard_standard_streams()


def _packages(plan: Plan) -> list[str]:
    """Return the packages that the command line selects."""
    return _selection.choose({quoted(package): package for package in plan.packages})


def _with_families(plan: Plan) -> list[str]:
    """Return the packages that the command line selects, and those that share weights with them."""
    packages = dict.fromkeys(_packages(plan))
    for package in list(packages):
        packages |= dict.fromkeys(plan.members(package))
    return list(packages)


def _needs_our_runner() -> None:
    """Refuse to run in doit's own runner, which it uses if it can't tell whose tasks it has."""
    hint = (
        "the dodo file itself must import the tasks: `from pte_pipeline.tasks import *`"
    )
    raise RuntimeError(
        f"not a workspace of pte-pipeline, or it is not installed; {hint}"
    )


def _group(name: str) -> dict[str, Any]:
    """Return a group of tasks; `doit list` has a line for it even if it is empty."""
    return {"name": None, "doc": GROUPS[name].summary}


def _task(
    task: ActionTask, doc: str, setup_later: MakeTasks | None = None, **more: Any
) -> dict[str, Any]:
    name = "/".join(filter(None, (task.package or task.model, task.method)))
    return {
        "name": quoted(name),
        "doc": one_line(doc),
        "actions": [_needs_our_runner],
        "uptodate": [UpToDate(task, setup_later)],
        **more,
    }


def _method_tasks(kind: str) -> Iterator[dict[str, Any]]:
    """Yield the tasks of compile units or quantized methods.

    Yields only the group if they are made later, for stale packages only.
    """
    plan = current_plan()
    yield _group(kind)
    for package in _with_families(plan) if not _selection.whole else ():
        yield from _method_tasks_of(plan, package, kind)


def _method_tasks_of(plan: Plan, package: str, kind: str) -> Iterator[dict[str, Any]]:
    if plan.problems(package):
        return
    model, exporter, name = plan.model(package), plan.exporter(package), quoted(package)
    first = [f"export:{quoted(exporter)}"] if exporter else []
    quantized = plan.quantized(package)
    units = (
        plan.units(package)
        if kind == "compile"
        else [(method,) for method in quantized]
    )
    for unit in units:
        task = ActionTask(plan, kind, model, package, unit)
        setup = [
            f"quantize:{name}/{method}"
            for method in unit
            if kind == "compile" and method in quantized
        ]
        yield _task(
            task, f"{kind} {task.method} of {package}", task_dep=first, setup=setup
        )


def _make_method_tasks(plan: Plan, package: str) -> Iterator[Task]:
    """Make the tasks of the exports and methods that a package is linked from.

    doit gets them after it has made all others.
    """
    for linked_package in plan.linked_from(package):
        yield from _method_tasks_once(plan, linked_package)


@cache
def _method_tasks_once(plan: Plan, package: str) -> list[Task]:
    """Make the tasks of a package's methods once, for all packages of its family."""
    makers = {
        "export": _export_tasks(plan, [package]),
        "quantize": _method_tasks_of(plan, package, "quantize"),
        "compile": _method_tasks_of(plan, package, "compile"),
    }
    tasks = []
    for kind, maker in makers.items():
        for task in generate_tasks(kind, maker, ""):
            if task.subtask_of:
                tasks.append(task)
    return tasks


def make_tasks_again() -> list[Task]:
    """Make all of our tasks for doit again, from the current files of the workspace."""
    _method_tasks_once.cache_clear()
    tasks: list[Task] = load_tasks(globals())
    return tasks


def _creator(make: _Creator) -> _Creator:
    """Spare doit the source of a function, which it parses to sort functions by their lines."""
    return lambda: make()


@_creator
def task_export() -> Iterator[dict[str, Any]]:
    plan = current_plan()
    yield _group("export")
    packages = _with_families(plan)
    prefetch_exports(plan, packages)
    yield from _export_tasks(plan, packages)


def _export_tasks(plan: Plan, packages: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Yield the tasks of the exports of packages."""
    for model in sorted({model for model in map(plan.exporter, packages) if model}):
        yield _task(ActionTask(plan, "export", model), f"export the methods of {model}")


@_creator
def task_quantize() -> Iterator[dict[str, Any]]:
    yield from _method_tasks("quantize")


@_creator
def task_compile() -> Iterator[dict[str, Any]]:
    yield from _method_tasks("compile")


@_creator
def task_lower() -> Iterator[dict[str, Any]]:
    plan = current_plan()
    yield _group("lower")
    for package in _with_families(plan):
        model, file = plan.model(package), plan.file(package)
        yield _task(
            ActionTask(plan, "link", model, package),
            f"lower {package} to {file}" if file else f"lower {package}",
            partial(_make_method_tasks, plan, package),
            setup=[] if _selection.whole else _unit_tasks(plan, package),
            targets=[_target(plan, package, file)] if file else [],
            clean=[(remove_what_was_built, (plan, package))],
        )


def _target(plan: Plan, package: str, file: str) -> str:
    """Return the path of a package's file, as doit shows it."""
    return os.path.join(_show(plan.workspace.build, plan.workspace.root), package, file)


@cache
def _show(folder: Path, root: Path) -> str:
    """Return the path of a folder relative to another one."""
    return os.path.relpath(folder, root)


def _unit_tasks(plan: Plan, package: str) -> list[str]:
    """Return the names of the compile tasks for the objects that a package is linked from."""
    names = []
    for linked_package in plan.linked_from(package):
        if plan.problems(linked_package):
            continue
        for unit in plan.units(linked_package):
            names.append(f"compile:{quoted(linked_package)}/{unit_name(unit)}")
    return names


def remove_what_was_built(plan: Plan, package: str, dryrun: bool) -> None:
    try:
        for name in clean(plan.workspace, package, dryrun):
            print(one_line(f"lower:{package} - removing {name}"))
    except OSError as error:  # doit would print a traceback and exit with status 0
        raise SystemExit(f"clean: {describe_error(error)}") from error


def clean_orphans(dryrun: bool) -> int:
    """Remove only the build output of packages that no config makes any more."""
    plan = current_plan()
    orphans = find_orphans(plan.workspace, plan.configs.packages)
    for package in orphans:
        remove_what_was_built(plan, package, dryrun)
    if not orphans:
        print("no orphans: every package in build/ has a config")
    return 0


def renew_overview() -> None:
    """Write the pages over all packages again, if there are any.

    They link to reports that may be gone.
    """
    plan = current_plan()
    if not (plan.workspace.build / "index.html").exists():
        return
    try:
        list(call_all("write_overview", plan.workspace, plan.configs.packages))
    except (OSError, PipelineError) as error:
        raise SystemExit(f"clean: {describe_error(error)}") from error


@_creator
def task_validate() -> Iterator[dict[str, Any]]:
    plan = current_plan()
    yield _group("validate")
    for package in _packages(plan):
        task = ActionTask(plan, "validate", plan.model(package), package)
        lowered = [f"lower:{quoted(package)}"]
        members = plan.members(package)
        if members:
            lowered.append(f"{FAMILY}:{quoted(members[0])}")
        yield _task(task, f"validate {package}", task_dep=lowered)
        part = _selection.parts.get(quoted(package), ())
        if part and {*part} <= {*chain.from_iterable(plan.units(package))}:
            task = ActionTask(plan, "validate", plan.model(package), package, part)
            yield _task(task, f"validate {task.method} of {package}", task_dep=lowered)


@_creator
def task__family() -> Iterator[dict[str, Any]]:
    """Group the packages of each family under its first; validations wait for their sizes.

    `doit list` hides these groups.
    """
    plan = current_plan()
    yield {"name": None, "doc": "packages that belong together"}
    families: dict[str, list[str]] = {}
    for package in _packages(plan):
        members = plan.members(package)
        if members:
            families[members[0]] = members
    for first_package, members in families.items():
        lowered = [f"lower:{quoted(member)}" for member in members]
        yield {"name": quoted(first_package), "actions": None, "task_dep": lowered}


__all__ = ["DOIT_CONFIG", *(name for name in globals() if name.startswith("task_"))]
