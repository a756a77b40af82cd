"""Checks that a workspace's passes and operator libraries read only inputs that are in keys.

The check uses the record of their process.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from pipeline.features.tracing.nondeterminism import find_nondeterminism, find_strings
from pipeline.features.tracing.paths import is_no_file
from pipeline.features.tracing.tracer import Tracer
from pipeline.features.tracing.undeclared import list_undeclared
from pipeline.features.tracing.watch import loaded_files
from pipeline.plan.actions import Action
from pipeline.plan.kinds.compile import CompileInputs
from pipeline.plan.places import FOLDER, SYSTEM, Kind, Places, within
from pipeline.plan.user_code import CodeReader, open_code
from pipeline.run.isolated import running_files
from pipeline.store.distributions import find_folders
from pipeline.store.errors import SourceError
from pipeline.store.places import default_root
from pipeline.store.startup import library_folders
from pipeline.store.workspace import Workspace

_KINDS = ("passes", "operators")  # kinds of code, and the names of their folders


class PassReads:
    """Follows a process that runs passes or loads libraries of operators.

    Attributes:
        watch: records what the process touches.
    """

    def __init__(self, action: Action[CompileInputs], workspace: Workspace) -> None:
        places = Places(workspace)
        self.watch = Tracer(places.wanted, places.observe)
        self._action = action
        self._workspace = workspace

    def check(self) -> None:
        """Raise SourceError if passes or operator libraries read what the action's key lacks."""
        _check_reads(self._action, self._workspace, self.watch)


def _check_reads(
    action: Action[CompileInputs], workspace: Workspace, watch: Tracer
) -> None:
    places = Places(workspace)
    reader = CodeReader(workspace)
    modules = _find_modules(action, workspace)
    declared = [module_inputs for _, module_inputs in reader.declared(modules)]
    undeclared = set()
    for kind, path in _reads(action, modules, workspace, watch):
        name = places.spell(path)
        if not any(
            inputs_of_module.covers(places, path, kind != "file")
            for inputs_of_module in declared
        ):
            undeclared.add(name)
    variables = {
        name for inputs_of_module in declared for name in inputs_of_module.environment
    }
    strings = {text for path in modules for text in find_strings(path)}
    read = watch.find_variables([*map(str, modules)], strings)
    undeclared |= {f"env:{name}" for name in read - variables}
    who = [("passes", "passes"), ("libraries of operators", "operators")]
    named = [room for room in who if action.key.get(room[1])]
    subject, where = (
        " and ".join(n for n, _ in named),
        ", ".join(f"{f}/" for _, f in named),
    )
    if undeclared:
        names = list_undeclared(undeclared)
        mistake = f"{subject} read files that their INPUTS do not name: {names}"
        raise SourceError(f"{where}: {mistake}")
    causes = [
        line
        for path in modules
        for line in find_nondeterminism(path, places.spell(str(path)))
    ]
    if causes and not declared:
        raise SourceError(
            f"{causes[0]}; declare INPUTS if it doesn't affect the result"
        )
    if watch.view == "kernel" and watch.unfollowed:
        raise SourceError(f"{where}: {subject} depend on {', '.join(watch.unfollowed)}")


def _find_modules(action: Action[CompileInputs], workspace: Workspace) -> list[Path]:
    """Return the modules of the workspace that the action's process runs."""
    modules = []
    for kind in _KINDS:
        if references := action.key.get(kind):
            modules += open_code(kind, workspace).modules(references)
    return modules


def _names_plugins(path: str) -> bool:
    """Return whether a file lists a distribution's entry points.

    Libraries read it for every installed distribution to find their plugins, even for one that is
    installed from its source folder.
    """
    place = Path(path)
    return place.name == "entry_points.txt" and place.parent.suffix in (
        ".egg-info",
        ".dist-info",
    )


def _is_tried_by_loader(path: str) -> bool:
    """Return whether the dynamic loader may look for a file while it loads a library.

    It looks in the folders that the environment names. Keys hold the contents of these folders.
    """
    folders = map(str, library_folders())
    return ".so" in Path(path).name and any(within(path, folder) for folder in folders)


def _reads(
    action: Action[CompileInputs],
    modules: Sequence[Path],
    workspace: Workspace,
    watch: Tracer,
) -> Iterator[tuple[Kind, str]]:
    """Yield what the process looked at that can have changed the result of passes.

    That excludes what compiling itself reads, what every process looks at, and what keys hold
    already.
    """
    root = str(workspace.root)
    named = (
        f
        for c in action.inputs.configs.values()
        for paths in c.files.values()
        for f in paths
    )
    files = {str(source.archive) for source in action.inputs.sources.values()}
    files |= {str(Path(root, name)) for name in named}
    files |= running_files() | loaded_files()
    # The versions of libraries, which this package caches.
    cache = str(default_root() / "distributions")
    folders = [*(str(workspace.root / room) for room in _KINDS), cache, *SYSTEM]
    for library in action.libraries:
        library_files = open_code("operators", workspace).files(library)
        files |= set(map(str, library_files.values()))
        folders += find_folders(library.partition(".")[0])
    for name in CodeReader(workspace).imports(modules):
        folders += find_folders(name)
    for (kind, path), value in watch.seen.items():
        is_known = path in files or any(within(path, folder) for folder in folders)
        if is_known or is_no_file(path) or _names_plugins(path):
            continue
        if value is None and _is_tried_by_loader(path):
            continue
        inside = within(path, root)
        if kind == "listing":
            is_read = inside and path != root
        else:  # absent files count only in the workspace; folders are on the way to a file
            is_read = (
                kind == "file" and value != FOLDER and (inside or value is not None)
            )
        if is_read:
            yield kind, path
