"""Export: run a model's exporter and keep its programs and inputs in the store.

It runs in a process of its own. All that it looked at there are its inputs (`export_reads`): the
key of the action holds what it found.
"""

from __future__ import annotations

import importlib.util
import inspect
import io
import linecache
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import torch
from torch import Tensor
from torch.export import ExportedProgram

from pipeline.config.operators import load_libraries
from pipeline.plan import keys
from pipeline.plan.actions import Action, ExportInputs
from pipeline.plan.export_parameters import FUNCTION
from pipeline.plan.places import environment_folders, within
from pipeline.plan.reads import MOST_RECORDS, Reads, parse_records
from pipeline.program import sources
from pipeline.program.archive import save_programs
from pipeline.program.constant_values import encode_constant
from pipeline.program.fresh_imports import FromText
from pipeline.program.inputs import InputSet, as_input_sets, save_inputs
from pipeline.program.operator_libraries import explain_missing
from pipeline.program.signature import check_inputs
from pipeline.run.build.export_reads import ExportReads
from pipeline.run.build.exporter_imports import find_shadowed, import_afresh, importing_for
from pipeline.run.build.load import check_libraries
from pipeline.run.explain_error import explain_error
from pipeline.run.imports import keeping_all
from pipeline.run.stages import IMPORT, Stages
from pipeline.run.trace.isolated import has_kernel_view, run_isolated
from pipeline.store import digest
from pipeline.store.digest import Digest
from pipeline.store.errors import SourceError
from pipeline.store.names import METHOD_NAME, METHOD_RULE, are_distinct
from pipeline.store.store import Store
from pipeline.store.workspace import Workspace


def export(
    action: Action[ExportInputs], workspace: Workspace, stages: Stages, kernel: bool = True
) -> None:
    """Run the exporter and record the result, under the key of what it really read.

    Args:
        kernel: whether the kernel may be asked what the exporter looks at, where it can be.

    Raises:
        SourceError: the exporter raised, gave something else than named programs and inputs that
            fit them, reads what it does not declare, or a file that it read changed meanwhile.
    """
    root, store = workspace.root, workspace.store
    path = root / action.inputs.path
    content = digest.hash_file(path)
    with stages.stage(IMPORT), keeping_all():
        _warm_up()
    inputs = ExportReads(workspace, action.inputs, kernel and has_kernel_view())
    with stages.stage("run the exporter"), importing_for(root, path):
        shadowed = find_shadowed(root, path.parent)
        prepare = partial(load_libraries, action.libraries, root)
        parameters = action.inputs.parameters
        run = partial(_run_exporter, path, store, shadowed, parameters, prepare)
        explain = partial(explain_error, root=root)
        result, parts, names = run_isolated(run, inputs.watch, stages, kernel, explain)
    with stages.stage("store"):
        if digest.hash_file(path) != content:
            raise SourceError(
                f"{path.parent.name}/{path.name}: changed while the exporter ran; run again"
            )
        check_libraries(action, workspace)
        reads = inputs.find(**names)
        for key, value in parts:
            store.put_result(key, value)
        made = replace(action.inputs, unfollowed=reads.unfollowed)
        found = inputs.finder.find(reads, inputs.declared)
        libraries = list(action.key.get("operator_inputs", {}).items())
        real = keys.export_action(
            action.model, content, found, reads.distributions, made, libraries
        )
        store.put_result(real.key, result, stages.total, stages.seconds(), stages.peak)
        _record(store, keys.reads_key(action.model, content), reads, real.digest)


def _record(store: Store, key: keys.Key, reads: Reads, last: Digest) -> None:
    """Record where an export looked, before the runs that went other ways."""
    entry = store.get_by_key(key)
    runs = [reads, *(run for run in parse_records(entry.result if entry else {}) if run != reads)]
    record = {"runs": [run.to_json() for run in runs[:MOST_RECORDS]], "last": last}
    store.put_result(key, record)


@cache
def _warm_up() -> None:
    """Export and save a small program and its inputs, for which torch imports much more than for
    its own import: once for all forks, and what it reads meanwhile is no exporter's input."""
    example = (torch.ones(1, 1),)
    program = torch.export.export(torch.nn.Linear(1, 1).requires_grad_(False), example)
    save_programs({"forward": program}, io.BytesIO())
    save_inputs([InputSet(example, {}, "")])
    torch.compiler.list_backends()  # control flow asks all distributions for some, once a process
    _keep_lines()


def _keep_lines() -> None:
    """Let stack traces quote the files of libraries as this process has read them, which runs
    their code as it was then: Python asks for each of them whether it changed, at every trace."""
    for name, entry in linecache.cache.items():
        if len(entry) == 4 and any(within(name, folder) for folder in environment_folders()):
            size, _, lines, path = entry
            linecache.cache[name] = (size, None, lines, path)


def _run_exporter(
    path: Path,
    store: Store,
    shadowed: Collection[str],
    parameters: Mapping[str, Any],
    prepare: Callable[[], None],
) -> list[Any]:
    """Run an exporter in this process, which is its own, and store its programs and inputs; return
    its result, the records of its programs with their keys, and what it asked importlib for.
    `prepare` is called before it is."""
    asked = import_afresh(shadowed)
    prepare()
    with _explaining_operators(path):
        module = _load(path)
        programs = _programs(module, parameters)
    constants = _constants(module, parameters, programs, store)

    def inputs(kind: Literal["example", "calibration"], method: str) -> Iterator[InputSet]:
        return _inputs(module, kind, method, programs[method], parameters)

    examples = {name: list(inputs("example", name)) for name in programs}
    # Each set has a record of its own, so that an exporter that yields them has one of them in
    # memory at a time.
    batches = {
        name: [store.put(save_inputs([each])) for each in inputs("calibration", name)]
        for name in programs
    }
    torch.set_default_device(None)  # whatever the exporter works with
    torch.set_default_dtype(torch.float32)
    result, parts = _commit(programs, examples, batches, store)
    return [{**result, "constant_methods": constants}, parts, asked.to_json()]


@contextmanager
def _explaining_operators(path: Path) -> Iterator[None]:
    try:
        yield
    except AttributeError as error:
        if what := explain_missing(error):
            raise SourceError(f"{path.parent.name}/{path.name}: {what}") from error
        raise


def _load(path: Path) -> ModuleType:
    loader = FromText(path.stem, str(path))
    spec = importlib.util.spec_from_file_location(path.stem, path, loader=loader)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def _programs(module: ModuleType, parameters: Mapping[str, Any]) -> dict[str, ExportedProgram]:
    function = getattr(module, FUNCTION, None)
    if callable(function):
        _check_parameters(module, function, parameters)
    programs = function(**parameters) if callable(function) else None
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
        what = f"method names {', '.join(wrong)}; {METHOD_RULE}"
    elif not are_distinct(programs):
        what = f"method names {', '.join(sorted(programs))}: two of them differ by case alone; "
        what += "rename one, since archives and some file systems take both for one"
    else:
        return dict(programs)
    raise SourceError(f"{_file_of(module)}: {what}")


def _file_of(module: ModuleType) -> str:
    """Return the file of an exporter as it is called in the workspace."""
    path = Path(getattr(module, "__file__", None) or f"{module.__name__}.py")
    return f"{path.parent.name}/{path.name}"


def _check_parameters(
    module: ModuleType, function: Callable[..., Any], parameters: Mapping[str, Any]
) -> None:
    """Raise SourceError where the exporter takes other parameters than the config gives."""
    try:
        inspect.signature(function).bind(**parameters)
    except TypeError as error:
        known = ", ".join(inspect.signature(function).parameters) or "none"
        what = f"{FUNCTION}() can't be called with what `export` gives: {error}; it takes {known}"
        raise SourceError(f"{_file_of(module)}: {what}") from error


def _call(function: Callable[..., Any], parameters: Mapping[str, Any], *given: str) -> Any:
    """Call a function of an exporter with those of the parameters that it takes beside what is
    given by place: `example_inputs(method)` gets the method, whatever `export` calls so."""
    taken = list(inspect.signature(function).parameters.values())
    every = any(each.kind is each.VAR_KEYWORD for each in taken)
    places = {each.name for each in taken[: len(given)] if each.kind is each.POSITIONAL_OR_KEYWORD}
    by_name = {each.name for each in taken} - places
    own = {n: v for n, v in parameters.items() if n in by_name or (every and n not in places)}
    return function(*given, **own)


def _constants(
    module: ModuleType, parameters: Mapping[str, Any], programs: Collection[str], store: Store
) -> list[tuple[str, Any]]:
    """Return the constant methods of an exporter, by name and in its order."""
    function = getattr(module, "constant_methods", None)
    found = _call(function, parameters) if callable(function) else {}
    where = f"{_file_of(module)}: constant_methods()"
    if not isinstance(found, Mapping):
        raise SourceError(f"{where} returned {_describe(found)}; must be a dict of name to value")
    constants: list[tuple[str, Any]] = []
    for name, value in found.items():
        if not METHOD_NAME.fullmatch(str(name)) or name in programs:
            raise SourceError(f"{where}: {name!r} can't name one, or names a method already")
        try:
            constants.append((str(name), encode_constant(value, store.put)))
        except ValueError as error:
            raise SourceError(f"{where}: {name} is {_describe(value)}, {error}") from error
    return constants


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
    parameters: Mapping[str, Any],
) -> Iterator[InputSet]:
    """Yield the example or the calibration inputs of a method; by default its examples are those of
    the export."""
    function = getattr(module, f"{kind}_inputs", None)
    value = _call(function, parameters, method) if callable(function) else None
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
            where = f"{_file_of(module)}: {kind}_inputs({method!r})"
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
