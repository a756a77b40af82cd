"""Whether passes of a workspace kept to their inputs, as their process was seen."""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterator
from pathlib import Path

from pipeline.config.passes import FOLDER
from pipeline.plan.actions import Action, CompileInputs
from pipeline.plan.pass_inputs import PassInputs
from pipeline.plan.places import Kind, Places, within
from pipeline.run.build.chance import find_strings
from pipeline.run.trace.watch import FOLDER as A_FOLDER
from pipeline.run.trace.watch import Watch
from pipeline.store.distributions import find_folders
from pipeline.store.errors import SourceError
from pipeline.store.store import default_root
from pipeline.store.workspace import Workspace

# What programs and libraries look at on every machine.
_SYSTEM = ("/etc", "/usr", "/lib", "/lib32", "/lib64", "/bin", "/sbin", "/run", "/var/run")
_MOST_NAMED = 12  # places in an error


def watch_passes(workspace: Workspace) -> Watch:
    """Return a watch for a process that runs passes."""
    places = Places(workspace)
    return Watch(places.wanted, places.observe)


def check_pass_reads(action: Action[CompileInputs], workspace: Workspace, watch: Watch) -> None:
    """Raise SourceError where passes read in their process what the action's key doesn't hold."""
    inputs, places = PassInputs(workspace), Places(workspace)
    declared = [each for _, each in inputs.declared()]
    beside = set()
    for kind, path in _reads(action, inputs, workspace, watch):
        name = places.spell(path)
        if not any(each.covers(places, path, kind != "file") for each in declared):
            beside.add(name)
    known = {name for each in declared for name in each.environment}
    strings = {text for path in inputs.modules() for text in find_strings(path)}
    beside |= {f"env:{name}" for name in (watch.environment.keys() & strings) - known}
    if beside:
        names = ", ".join(sorted(beside)[:_MOST_NAMED])
        raise SourceError(f"{FOLDER}/: passes read what no INPUTS of theirs names: {names}")
    if watch.view == "kernel" and watch.unfollowed:
        raise SourceError(f"{FOLDER}/: passes depend on {', '.join(watch.unfollowed)}")


def _reads(
    action: Action[CompileInputs], inputs: PassInputs, workspace: Workspace, watch: Watch
) -> Iterator[tuple[Kind, str]]:
    """Yield what was looked at and can have changed what passes do: neither what compiling reads
    itself, nor what every process looks at, nor what keys hold already."""
    root = str(workspace.root)
    named = (f for c in action.inputs.configs.values() for each in c.files.values() for f in each)
    files = {str(source.archive) for source in action.inputs.sources.values()}
    files |= {str(Path(root, name)) for name in named}
    # torch quotes callers, whose names may be relative.
    files |= {os.path.abspath(frame.filename) for frame in traceback.extract_stack()}
    own = str(default_root() / "distributions")  # versions of libraries, which we cache
    folders = [str(workspace.root / FOLDER), own, *_SYSTEM]
    for name in inputs.imports(inputs.modules()):
        folders += find_folders(name)
    for (kind, path), value in watch.seen.items():
        # tracebacks name `<frozen runpy>`, editable installations stand so on sys.path
        no_file = value is None and os.path.basename(path).startswith(("<", "__editable__."))
        if no_file or path in files or any(within(path, folder) for folder in folders):
            continue
        inside = within(path, root)
        if kind == "listing":
            found = inside and path != root
        else:  # what isn't there counts in the workspace alone; folders are on the way to something
            found = kind == "file" and value != A_FOLDER and (inside or value is not None)
        if found:
            yield kind, path
