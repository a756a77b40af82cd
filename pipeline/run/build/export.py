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
from typing import Any

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
_WRITTEN = digest.Digest("written")


def export(action: Action[ExportInputs], workspace: Workspace, stages: Stages) -> dict[str, Any]:
    """Runs the exporter and records the result, under the key of what it really read.

    Raises:
        SourceError: the exporter raised, or gave something else than named programs and inputs
            that fit them, or a file that it read changed meanwhile.
    """
    path = workspace.root / action.inputs.path
    content = digest.hash_file(path)
    with stages.stage("run the exporter"), _importing(workspace.root, path) as opened:
        module = _load(path)
        programs = _programs(path, module)
        examples = {n: _examples(path, module, n, program) for n, program in programs.items()}
        batches = {
            name: list(_calibration(path, module, name, program, workspace.store))
            for name, program in programs.items()
        }
        imported = _workspace_modules(workspace.root)
    with stages.stage("store"):
        result = _commit(programs, examples, batches, workspace)
        _refuse_edited({**opened, str(path): content})
        names = _inside(workspace.root, {*opened, *map(str, imported)} - {str(path)})
        read = {
            name: opened.get(str(workspace.root / name)) or _digest_if_there(workspace.root / name)
            for name in sorted(names)
        }
        record = {"reads": list(read), "distributions": _distributions([path, *imported])}
        workspace.store.put_result(keys.reads_key(action.model, content), record)
        real = keys.export_action(
            action.model, content, read, record["distributions"], action.inputs.path
        )
        workspace.store.put_result(real.key, result, stages.total)
    return result


def _load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def _programs(path: Path, module: ModuleType) -> dict[str, ExportedProgram]:
    function = getattr(module, "export_methods", None)
    if not callable(function):
        raise SourceError(
            f"{path.name}: has no function export_methods(); it must return a dict of method name "
            "to ExportedProgram"
        )
    programs = function()
    good = isinstance(programs, Mapping) and programs
    if not good or not all(isinstance(p, ExportedProgram) for p in programs.values()):
        raise SourceError(
            f"{path.name}: export_methods() returned {_describe(programs)}; must be a dict of "
            "method name to torch.export.ExportedProgram"
        )
    wrong = [repr(name) for name in programs if not METHOD_NAME.fullmatch(str(name))]
    if wrong:
        raise SourceError(
            f"{path.name}: method names {', '.join(wrong)}; must be letters, digits and "
            "underscores, and not start with a digit"
        )
    return dict(programs)


def _describe(value: Any) -> str:
    if isinstance(value, Mapping):
        kinds = ", ".join(f"{name}: {type(v).__name__}" for name, v in value.items())
        return f"a dict of {kinds}" if kinds else "an empty dict"
    return type(value).__name__


def _examples(
    path: Path, module: ModuleType, method: str, program: ExportedProgram
) -> list[InputSet]:
    """The example inputs of a method; by default those of the export."""
    function = getattr(module, "example_inputs", None)
    value = function(method) if callable(function) else None
    if value is None:
        value = program.example_inputs and [tuple(program.example_inputs)]
    sets = as_input_sets(value, "example") if value else []
    for inputs in sets:
        _check(path, "example_inputs", method, program, inputs)
    return sets


def _calibration(
    path: Path, module: ModuleType, method: str, program: ExportedProgram, store: Store
) -> Iterator[digest.Digest]:
    """Keeps the calibration inputs of a method, each in a record of its own, so that an exporter
    that yields them has one of them in memory at a time."""
    function = getattr(module, "calibration_inputs", None)
    value = function(method) if callable(function) else None
    if isinstance(value, tuple | list) or value is None:
        sets: Iterable[InputSet] = as_input_sets(value, "calibration") if value else []
    elif isinstance(value, Iterable) and not isinstance(value, Mapping | str | Tensor):
        sets = _numbered(value)
    else:
        sets = as_input_sets(value, "calibration")  # which says what is wrong with it
    for inputs in sets:
        _check(path, "calibration_inputs", method, program, inputs)
        yield store.put(save_inputs([inputs]))


def _numbered(calls: Iterable[Any]) -> Iterator[InputSet]:
    for number, call in enumerate(calls):
        (inputs,) = as_input_sets([call], "calibration")
        yield replace(inputs, origin=f"calibration {number}")


def _check(
    path: Path, function: str, method: str, program: ExportedProgram, inputs: InputSet
) -> None:
    try:
        check_inputs(program, inputs)
    except Exception as error:
        raise SourceError(f"{path.name}: {function}({method!r}): {error}") from error


def _commit(
    programs: Mapping[str, ExportedProgram],
    examples: Mapping[str, list[InputSet]],
    batches: Mapping[str, list[digest.Digest]],
    workspace: Workspace,
) -> dict[str, Any]:
    store = workspace.store
    with store.writer() as file:
        save_programs(programs, file)
    archive = store.blob_path(file.digest)
    described = sources.describe_archive(archive, file.digest)
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

_watched: Path | None = None
_opened: dict[str, digest.Digest | None] = {}
_hooked = False


def _audit(event: str, args: tuple[Any, ...]) -> None:
    """Notes the content of every file of the workspace as it is when it is first opened to be
    read, so that an edit is seen whatever the clock says. What the exporter itself writes is no
    input."""
    global _watched
    if _watched is None or event != "open" or not isinstance(args[0], str):
        return
    if args[0] in sys.path:  # tried as an archive of modules, as hooks of editable installs are
        return
    root, path = _watched, os.path.abspath(args[0])
    if path.endswith(".pyc"):  # then the source is not opened
        with suppress(ValueError):
            path = importlib.util.source_from_cache(path)
    if path in _opened or not _is_inside(root, Path(path)):
        return
    _watched = None  # reading it here opens it too
    try:
        content = _digest_if_there(Path(path))
        flags = args[2] or 0
        made = flags & os.O_CREAT and content is None
        _opened[path] = _WRITTEN if made or flags & (os.O_TRUNC | os.O_APPEND) else content
    finally:
        _watched = root


@contextmanager
def _importing(root: Path, path: Path) -> Iterator[dict[str, digest.Digest | None]]:
    """Imports from the workspace, afresh, and yields what is opened meanwhile, with its digest.

    A worker runs several exporters: none may see a module that another one imported, and all that
    it imports must be seen. An audit hook can't be removed, so there is one per process.
    """
    global _watched, _hooked
    if not _hooked:
        sys.addaudithook(_audit)
        _hooked = True
    before, sys.path[:0] = list(sys.path), [str(root), str(path.parent)]
    writing, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    _opened.clear()
    _watched = root
    try:
        read: dict[str, digest.Digest | None] = {}
        yield read
    finally:
        _watched = None
        read |= {name: content for name, content in _opened.items() if content is not _WRITTEN}
        sys.path[:], sys.dont_write_bytecode = before, writing
        for name in [n for n, m in sys.modules.items() if _is_inside(root, _module_file(m))]:
            del sys.modules[name]


def _workspace_modules(root: Path) -> list[Path]:
    files = (_module_file(module) for module in list(sys.modules.values()))
    return sorted({file for file in files if file is not None and _is_inside(root, file)})


def _module_file(module: ModuleType | None) -> Path | None:
    file = getattr(module, "__file__", None)
    return Path(file) if isinstance(file, str) else None


def _inside(root: Path, paths: Iterable[Path | str]) -> Iterator[str]:
    for path in paths:
        absolute = root / path
        if _is_inside(root, absolute) and not absolute.is_dir():
            yield str(absolute.relative_to(root))


def _is_inside(root: Path, path: Path | None) -> bool:
    """Return whether a path is in the workspace, not in an environment or build folder in it."""
    if path is None or not str(path).startswith(f"{root}{os.sep}") or ".." in path.parts:
        return False  # almost all: thousands of modules outside
    outside = (_OWN_FOLDER, Path(sys.prefix), Path(sysconfig.get_path("purelib")), root / "build")
    hidden = any(
        part.startswith(".") or part == "__pycache__" for part in path.relative_to(root).parts
    )
    return not hidden and not any(path.is_relative_to(folder) for folder in outside)


def _refuse_edited(read: Mapping[str, digest.Digest | None]) -> None:
    for name, content in read.items():
        if content is not None and _digest_if_there(Path(name)) != content:
            raise SourceError(f"{Path(name).name}: changed while the exporter ran; run again")


def _digest_if_there(path: Path) -> digest.Digest | None:
    return digest.hash_file(path) if path.is_file() else None


def _distributions(files: Iterable[Path]) -> list[str]:
    """The installed distributions that these modules import; their versions enter the key."""
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
