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
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from importlib.machinery import FileFinder, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, cast

import torch
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
from pipeline.run.trace.isolated import run_isolated
from pipeline.run.trace.watch import FOLDER, Kind, Watch
from pipeline.store import digest
from pipeline.store.errors import SourceError
from pipeline.store.store import Store
from pipeline.store.workspace import Workspace

_OWN_FOLDER = Path(__file__).resolve().parents[2]


def export(action: Action[ExportInputs], workspace: Workspace, stages: Stages) -> None:
    """Run the exporter and record the result, under the key of what it really read.

    Raises SourceError where the exporter raised, gave something else than named programs and inputs
    that fit them, or a file that it read changed meanwhile.
    """
    root, store, model = workspace.root, workspace.store, action.model
    path = root / action.inputs.path
    content = digest.hash_file(path)
    watch = Watch(partial(_counts, root), _observe)
    with stages.stage("run the exporter"), _importing(root, path):
        run = partial(_run_exporter, path, store)
        result, parts = run_isolated(run, watch, stages)
    with stages.stage("store"):
        for key, value in parts:
            store.put_result(key, value)
        opened: dict[str, Any] = {
            name: seen for (kind, name), seen in watch.seen.items() if kind == "file"
        }
        for name, seen in {**opened, str(path): content}.items():
            if seen not in (None, FOLDER) and _digest_if_there(Path(name)) != seen:
                raise SourceError(f"{Path(name).name}: changed while the exporter ran; run again")
        imported = [Path(f) for f in watch.modules.values() if _is_inside(root, Path(f))]
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


def _run_exporter(path: Path, store: Store) -> list[Any]:
    """Run an exporter in this process, which is its own, and store its programs and inputs; return
    its result, and the records of its programs with their keys."""
    module = _load(path)
    programs = _programs(module)
    examples = {n: list(_inputs(module, "example", n, p)) for n, p in programs.items()}
    # Each set has a record of its own, so that an exporter that yields them has one of them in
    # memory at a time.
    batches = {
        name: [store.put(save_inputs([s])) for s in _inputs(module, "calibration", name, each)]
        for name, each in programs.items()
    }
    torch.set_default_device(None)  # whatever the exporter works with
    torch.set_default_dtype(torch.float32)
    return list(_commit(programs, examples, batches, store))


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
) -> tuple[dict[str, Any], list[Any]]:
    with store.writer() as file:
        save_programs(programs, file)
    described = sources.describe_archive(store.blob_path(file.digest), file.digest)
    facts = {each.entry: each for each in described.programs}
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
    parts = [[keys.program_key(each.program), each.parts] for each in facts.values()]
    return {"archive": file.digest, "methods": methods}, parts


# What an exporter reads


def _counts(root: Path, path: str) -> bool:
    name = os.path.relpath(path, root)  # in sys.path: tried as an archive of modules
    return name not in sys.path and _is_inside(root, Path(path))


def _observe(kind: Kind, path: str) -> Any:
    return FOLDER if os.path.isdir(path) else _digest_if_there(Path(path))


@contextmanager
def _importing(root: Path, path: Path) -> Iterator[None]:
    """Make the workspace's modules importable, for a fork of this process, in which what is looked
    for next is seen."""
    before, sys.path[:0] = list(sys.path), [str(root), str(path.parent)]
    writing, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    for folder, finder in sys.path_importer_cache.items():
        if finder is not None and _is_inside(root, Path(folder, "_")):
            cast(FileFinder, finder).invalidate_caches()
    # Folders of modules are listed now, so that their names are no inputs by that.
    PathFinder.find_spec("_")
    list(importlib.metadata.distributions(name="_"))
    try:
        yield
    finally:
        sys.path[:], sys.dont_write_bytecode = before, writing


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
