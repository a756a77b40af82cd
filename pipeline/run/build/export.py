"""Export: run a model's exporter and keep its programs and inputs in the store.

What the exporter imports or opens inside the workspace counts as its input. It is known only after
a run, so a record names those files by the content of the exporter; the action's key holds their
digests (ccache calls this its manifest, ninja a depfile).
"""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import os
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from torch import Tensor
from torch.export import ExportedProgram

from pipeline.plan import keys
from pipeline.plan.actions import Action, ExportInputs
from pipeline.program import sources
from pipeline.program.archive import save_programs
from pipeline.program.inputs import InputSet, as_input_sets, save_inputs
from pipeline.program.signature import check_inputs
from pipeline.program.sources import METHOD_NAME
from pipeline.run.stages import Stages
from pipeline.store import digest
from pipeline.store.errors import SourceError
from pipeline.store.store import Store
from pipeline.store.workspace import Workspace

_OWN_FOLDER = Path(__file__).resolve().parents[2]
# What was opened: its digest when that was first done, None where there was nothing.
_Opened = dict[str, digest.Digest | None]


def export(action: Action[ExportInputs], workspace: Workspace, stages: Stages) -> None:
    """Run the exporter and record the result, under the key of what it really read.

    Raises SourceError where the exporter raised, gave something else than named programs and inputs
    that fit them, or a file that it read changed meanwhile.
    """
    root, store, model = workspace.root, workspace.store, action.model
    path = root / action.inputs.path
    content = digest.hash_file(path)
    with stages.stage("run the exporter"), _importing(root, path) as opened:
        module = _load(path)
        programs = _programs(module)
        examples = {n: list(_inputs(module, "example", n, p)) for n, p in programs.items()}
        # Each set has a record of its own, so that an exporter that yields them has one of them in
        # memory at a time.
        batches = {
            name: [store.put(save_inputs([s])) for s in _inputs(module, "calibration", name, each)]
            for name, each in programs.items()
        }
        imported = sorted({*_workspace_modules(root).values()})
    with stages.stage("store"):
        result = _commit(programs, examples, batches, store)
        for name, seen in {**opened, str(path): content}.items():
            if seen is not None and _digest_if_there(Path(name)) != seen:
                raise SourceError(f"{Path(name).name}: changed while the exporter ran; run again")
        read = {
            str(file.relative_to(root)): opened.get(str(file)) or _digest_if_there(file)
            for file in sorted({*map(Path, opened), *imported} - {path}, key=str)
            if not file.is_dir()
        }
        record = {"reads": list(read), "distributions": _distributions([path, *imported])}
        store.put_result(keys.reads_key(model, content), record)
        distributions, place = record["distributions"], action.inputs.path
        real = keys.export_action(model, content, read, distributions, place)
        store.put_result(real.key, result, stages.total)


def _load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def _programs(module: ModuleType) -> dict[str, ExportedProgram]:
    function = getattr(module, "export_methods", None)
    programs = function() if callable(function) else None
    if not callable(function):
        what = "has no function export_methods(); it must return a dict of method name to "
        what += "ExportedProgram"
    elif not (
        isinstance(programs, Mapping)
        and programs
        and all(isinstance(program, ExportedProgram) for program in programs.values())
    ):
        what = f"export_methods() returned {_describe(programs)}; must be a dict of method name to "
        what += "torch.export.ExportedProgram"
    elif wrong := [repr(name) for name in programs if not METHOD_NAME.fullmatch(str(name))]:
        what = f"method names {', '.join(wrong)}; must be letters, digits and underscores, and not "
        what += "start with a digit"
    else:
        return dict(programs)
    raise SourceError(f"{module.__name__}.py: {what}")


def _describe(value: Any) -> str:
    if isinstance(value, Mapping):
        kinds = ", ".join(f"{name}: {type(v).__name__}" for name, v in value.items())
        return f"a dict of {kinds}" if kinds else "an empty dict"
    return type(value).__name__


def _inputs(
    module: ModuleType,
    kind: Literal["example", "calibration"],
    method: str,
    program: ExportedProgram,
) -> Iterator[InputSet]:
    """Yield the example or the calibration inputs of a method; by default its examples are those of
    the export."""
    function = getattr(module, f"{kind}_inputs", None)
    value = function(method) if callable(function) else None
    if value is None and kind == "example" and program.example_inputs:
        value = [tuple(program.example_inputs)]
    eager = kind == "example" or isinstance(value, tuple | list | Mapping | str | Tensor)
    sets: Iterable[InputSet]
    if value is None or (isinstance(value, tuple | list) and not value):
        sets = []
    elif eager or not isinstance(value, Iterable):
        sets = as_input_sets(value, kind)  # which says what may be wrong with it
    else:
        sets = (
            replace(as_input_sets([call], kind)[0], origin=f"{kind} {number}")
            for number, call in enumerate(value)
        )
    for inputs in sets:
        try:
            check_inputs(program, inputs)
        except Exception as error:
            where = f"{module.__name__}.py: {kind}_inputs({method!r})"
            raise SourceError(f"{where}: {error}") from error
        yield inputs


def _commit(
    programs: Mapping[str, ExportedProgram],
    examples: Mapping[str, list[InputSet]],
    batches: Mapping[str, list[digest.Digest]],
    store: Store,
) -> dict[str, Any]:
    with store.writer() as file:
        save_programs(programs, file)
    described = sources.describe_archive(store.blob_path(file.digest), file.digest)
    facts = {each.entry: each for each in described.programs}
    for each in facts.values():
        store.put_result(keys.program_key(each.program), each.parts)

    methods = [
        {
            "name": name,
            "program": facts[name].program,
            "names": facts[name].names,
            "examples": store.put(save_inputs(examples[name])) if examples[name] else None,
            "calibration": digest.hash_json(batches[name]) if batches[name] else None,
            "batches": batches[name],
        }
        for name in programs
    ]
    return {"archive": file.digest, "methods": methods}


# What an exporter reads

# While an exporter runs: its workspace, and what was opened in it.
_watching: tuple[Path, _Opened] | None = None
_written: set[str] = set()


def _audit(event: str, args: tuple[Any, ...]) -> None:
    """Note the content of every file of the workspace as it is when it is first opened to be read,
    so that an edit is seen whatever the clock says. What the exporter itself writes is no input."""
    global _watching
    if _watching is None or event != "open" or not isinstance(args[0], str):
        return
    if args[0] in sys.path:  # tried as an archive of modules, as hooks of editable installs are
        return
    (root, opened), path = _watching, os.path.abspath(args[0])
    if path.endswith(".pyc"):  # then the source is not opened
        with suppress(ValueError):
            path = importlib.util.source_from_cache(path)
    if path in opened or path in _written or not _is_inside(root, Path(path)):
        return
    _watching, watching = None, _watching  # reading it here opens it too
    try:
        content, flags = _digest_if_there(Path(path)), args[2] or 0
        if flags & (os.O_TRUNC | os.O_APPEND) or (flags & os.O_CREAT and content is None):
            _written.add(path)
        else:
            opened[path] = content
    finally:
        _watching = watching


@cache
def _add_hook() -> None:
    sys.addaudithook(_audit)


@contextmanager
def _importing(root: Path, path: Path) -> Iterator[_Opened]:
    """Import from the workspace, afresh, and yield what is opened meanwhile.

    A worker runs several exporters: none may see a module that another one imported, and all that
    it imports must be seen. An audit hook can't be removed, so there is one per process.
    """
    global _watching
    _add_hook()
    before, sys.path[:0] = list(sys.path), [str(root), str(path.parent)]
    writing, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    opened: _Opened = {}
    _written.clear()
    _watching = root, opened
    try:
        yield opened
    finally:
        _watching = None
        sys.path[:], sys.dont_write_bytecode = before, writing
        for name in _workspace_modules(root):
            del sys.modules[name]


def _workspace_modules(root: Path) -> dict[str, Path]:
    """Return the files of the modules that were imported from the workspace, by module."""
    files = {name: getattr(module, "__file__", None) for name, module in [*sys.modules.items()]}
    found = {name: Path(file) for name, file in files.items() if isinstance(file, str)}
    return {name: file for name, file in found.items() if _is_inside(root, file)}


def _is_inside(root: Path, path: Path) -> bool:
    """Return whether a path is in the workspace, not in an environment or build folder in it."""
    if not str(path).startswith(f"{root}{os.sep}") or ".." in path.parts:
        return False  # almost all: thousands of modules outside
    outside = (_OWN_FOLDER, Path(sys.prefix), Path(sysconfig.get_path("purelib")), root / "build")
    hidden = any(
        part.startswith(".") or part == "__pycache__" for part in path.relative_to(root).parts
    )
    return not hidden and not any(path.is_relative_to(folder) for folder in outside)


def _digest_if_there(path: Path) -> digest.Digest | None:
    return digest.hash_file(path) if path.is_file() else None


def _distributions(files: Iterable[Path]) -> list[str]:
    """Return the installed distributions that these modules import, whose versions are in keys."""
    modules: set[str] = set()
    for file in files:
        for node in ast.walk(ast.parse(file.read_bytes())):
            if isinstance(node, ast.Import):
                modules.update(alias.name.split(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                modules.add(node.module.split(".")[0])
    known = _installed()
    return sorted({distribution for m in modules for distribution in known.get(m, ())})


@cache
def _installed() -> Mapping[str, list[str]]:
    """Find the installed distributions by the modules they bring: hundreds of files to read."""
    return importlib.metadata.packages_distributions()
