"""The functions of an exporter: calls them and checks what they return.

Doesn't run programs and doesn't know where the store is.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from torch import Tensor
from torch.export import ExportedProgram
from torch.fx import GraphModule

from pipeline.moments import call_all
from pipeline.plan.export_parameters import FUNCTION
from pipeline.program.constant_values import encode_constant
from pipeline.program.inputs import InputSet, as_input_sets
from pipeline.program.signature import check_inputs
from pipeline.store.digest import Digest
from pipeline.store.errors import PipelineError, SourceError
from pipeline.store.names import METHOD_NAME, METHOD_RULE, are_distinct

Reference = Callable[..., Any]
_MOST_MISTAKES = 8  # to report about the inputs of one method


def call_export_methods(
    module: ModuleType, parameters: Mapping[str, Any]
) -> tuple[dict[str, ExportedProgram], dict[str, Reference]] | Iterator[Any]:
    """Call `export_methods`, and return programs by method and the references that came with them.

    If it is a generator, return its iterator. Raises SourceError if it returns anything else.
    """
    function = getattr(module, FUNCTION, None)
    if callable(function):
        _check_parameters(module, function, parameters)
    returned = function(**parameters) if callable(function) else None
    if isinstance(returned, Iterator):
        return returned
    programs, references = _split(returned)
    check_eager(module, references)
    if not callable(function):
        mistake = (
            "has no function export_methods(); it must return a dict of method name to "
            "ExportedProgram"
        )
    elif programs is None:
        mistake = (
            f"export_methods() returned {_describe_wrong(returned)}; must be a dict of "
            "method name to torch.export.ExportedProgram, or to a pair of it and its "
            "reference"
        )
    else:
        check_names(module, programs)
        return programs, references
    raise SourceError(f"{name_file(module)}: {mistake}")


def check_names(module: ModuleType, names: Iterable[Any]) -> None:
    """Raise SourceError for names that methods of a package can't have."""
    names = list(names)
    if wrong := [repr(name) for name in names if not METHOD_NAME.fullmatch(str(name))]:
        mistake = f"cannot name a method: {', '.join(wrong)} {METHOD_RULE}"
    elif not are_distinct(names):
        mistake = f"method names {', '.join(sorted(names))}: two of them differ only in case; "
        mistake += "rename one, since archives and some file systems treat both as one"
    else:
        return
    raise SourceError(f"{name_file(module)}: {mistake}")


def parse_yielded(
    module: ModuleType, value: Any
) -> tuple[str, ExportedProgram, Reference | None]:
    """Return the name, the program and the reference that `export_methods` yielded.

    Raises SourceError for anything else.
    """
    if type(value) is tuple and len(value) in (2, 3):
        name, program, *more = value
        reference = more[0] if more else None
        if isinstance(name, str) and _is_method((program, reference)):
            return name, program, reference
    raise SourceError(
        f"{name_file(module)}: export_methods() yielded {_describe(value)}; must be a pair of "
        "method name and torch.export.ExportedProgram, or these and the reference"
    )


def _split(
    returned: Any,
) -> tuple[dict[str, ExportedProgram] | None, dict[str, Reference]]:
    """Return the programs that `export_methods` returned, and the references among them.

    Returns None instead of the programs if it returned anything else.
    """
    if not isinstance(returned, Mapping) or not returned:
        return None, {}
    programs: dict[str, ExportedProgram] = {}
    references: dict[str, Reference] = {}
    for name, value in returned.items():
        program, reference = _split_pair(value)
        if not isinstance(name, str) or not _is_method(value):
            return None, {}
        programs[name] = program
        if reference is not None:
            references[name] = reference
    return programs, references


def _split_pair(value: Any) -> tuple[Any, Any]:
    return value if type(value) is tuple and len(value) == 2 else (value, None)


def _is_method(value: Any) -> bool:
    """Return whether a value is a program, or a pair of a program and a possible reference."""
    program, reference = _split_pair(value)
    return isinstance(program, ExportedProgram) and (
        reference is None or callable(reference)
    )


def _describe_wrong(returned: Any) -> str:
    """Describe the result of `export_methods`; for a dict, only the items that aren't methods."""
    if not isinstance(returned, Mapping):
        return _describe(returned)
    return _describe(
        {
            name: value
            for name, value in returned.items()
            if not isinstance(name, str) or not _is_method(value)
        }
    )


def check_eager(module: ModuleType, references: Mapping[str, Reference]) -> None:
    """Raise SourceError for a reference that is an exported program.

    The program would be compared with itself, which could not fail.
    """
    for method, reference in references.items():
        owner = getattr(reference, "__self__", reference)  # of a bound method
        if isinstance(owner, ExportedProgram) or _is_unlifted(owner):
            mistake = (
                f"the reference of {method!r} is an exported program, which would be "
                "compared with itself; pass the eager module, or no reference"
            )
            raise SourceError(f"{name_file(module)}: {mistake}")


def _is_unlifted(value: Any) -> bool:
    """Return whether a value is a program's `module()`, not just any `torch.fx` graph module."""
    return isinstance(value, GraphModule) and hasattr(
        value.graph._codegen, "pytree_info"
    )


def find_references(
    module: ModuleType,
    methods: Iterable[str],
    exported: Mapping[str, Reference],
    parameters: Mapping[str, Any],
) -> dict[str, Reference]:
    """Return the references by method.

    They are from the function `reference(method)`, or else from `exported`, which came with the
    programs.

    Raises SourceError if a reference isn't callable or is an exported program.
    """
    function = getattr(module, "reference", None)
    if not callable(function):
        return dict(exported)
    references: dict[str, Reference] = {}
    for method in methods:
        reference = call_with(function, parameters, method)
        if reference is None:
            reference = exported.get(method)
        if reference is None:
            continue
        if not callable(reference):
            where = f"{name_file(module)}: reference({method!r})"
            mistake = "must be a module, a function or None"
            raise SourceError(f"{where} returned {_describe(reference)}; {mistake}")
        references[method] = reference
    check_eager(module, references)
    return references


def name_file(module: ModuleType) -> str:
    """Return the file of an exporter as a path in the workspace."""
    path = Path(getattr(module, "__file__", None) or f"{module.__name__}.py")
    return f"{path.parent.name}/{path.name}"


def _check_parameters(
    module: ModuleType, function: Callable[..., Any], parameters: Mapping[str, Any]
) -> None:
    """Raise SourceError if the exporter can't be called with the config's parameters."""
    try:
        inspect.signature(function).bind(**parameters)
    except TypeError as error:
        names = ", ".join(inspect.signature(function).parameters) or "none"
        mistake = (
            f"{FUNCTION}() can't be called with the arguments in `export`: {error}; it takes "
            f"{names}"
        )
        raise SourceError(f"{name_file(module)}: {mistake}") from error


def call_with(
    function: Callable[..., Any], parameters: Mapping[str, Any], *arguments: str
) -> Any:
    """Call a function of an exporter with arguments by position and by name.

    Named arguments are passed only for parameters that the function has. A positional argument
    wins: `example_inputs(method)` gets the method, even if a parameter of `export` is called
    `method`.
    """
    accepted = list(inspect.signature(function).parameters.values())
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in accepted)
    places = {
        parameter.name
        for parameter in accepted[: len(arguments)]
        if parameter.kind is parameter.POSITIONAL_OR_KEYWORD
    }
    by_name = {parameter.name for parameter in accepted} - places
    keywords = {}
    for name, value in parameters.items():
        if name in by_name or (takes_any and name not in places):
            keywords[name] = value
    return function(*arguments, **keywords)


def call_constants(
    module: ModuleType,
    parameters: Mapping[str, Any],
    programs: Collection[str],
    put: Callable[[bytes], Digest],
) -> list[tuple[str, Any]]:
    """Return the constant methods of an exporter, as pairs of name and value in its order."""
    function = getattr(module, "constant_methods", None)
    returned = call_with(function, parameters) if callable(function) else {}
    where = f"{name_file(module)}: constant_methods()"
    if not isinstance(returned, Mapping):
        raise SourceError(
            f"{where} returned {_describe(returned)}; must be a dict of name to value"
        )
    constants: list[tuple[str, Any]] = []
    for name, value in returned.items():
        if not METHOD_NAME.fullmatch(str(name)) or name in programs:
            raise SourceError(
                f"{where}: {name!r} can't name one, or names a method already"
            )
        try:
            constants.append((str(name), encode_constant(value, put)))
        except ValueError as error:
            raise SourceError(
                f"{where}: {name} is {_describe(value)}, {error}"
            ) from error
    return constants


def _describe(value: Any) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(_describe(part) for part in value)})"
    if isinstance(value, Mapping):
        kinds = ", ".join(f"{name}: {_describe(v)}" for name, v in value.items())
        return f"a dict of {kinds}" if kinds else "an empty dict"
    return type(value).__name__


def call_inputs(
    module: ModuleType,
    kind: Literal["example", "calibration"],
    method: str,
    parameters: Mapping[str, Any],
) -> Any:
    """Return the result of an exporter's function for a method's inputs.

    The inputs are examples or for calibration. Returns None if the exporter has no such function.
    """
    function = getattr(module, f"{kind}_inputs", None)
    return call_with(function, parameters, method) if callable(function) else None


def parse_inputs(
    module: ModuleType,
    kind: Literal["example", "calibration"],
    method: str,
    program: ExportedProgram,
    value: Any,
) -> Iterator[InputSet]:
    """Yield a method's example or calibration inputs from the result of the exporter's function.

    Without a result, the examples are those of the export.
    """
    if value is None and kind == "example" and program.example_inputs:
        value = [tuple(program.example_inputs)]
        for examples in call_all("more_examples", program):
            value += examples
    eager = kind == "example" or isinstance(
        value, tuple | list | Mapping | str | Tensor
    )
    where = f"{name_file(module)}: {kind}_inputs({method!r})"
    sets: Iterable[InputSet]
    if value is None or (isinstance(value, tuple | list) and not value):
        sets = []
    elif eager or not isinstance(value, Iterable):
        sets = _as_input_sets(value, kind, where)  # which reports what is wrong with it
    else:
        sets = _number_calls(value, kind, where)
    mistakes: list[str] = []
    for inputs in sets:
        try:
            check_inputs(program, inputs)
        except Exception as error:
            mistakes.append(f"{where}: {error}")
        if len(mistakes) == _MOST_MISTAKES:
            break
        if not mistakes:
            yield inputs
    if mistakes:
        raise SourceError(*mistakes)


def _as_input_sets(value: Any, kind: str, where: str) -> list[InputSet]:
    try:
        return as_input_sets(value, kind)
    except PipelineError as error:
        raise SourceError(*(f"{where}: {line}" for line in error.lines)) from error


def _number_calls(calls: Iterable[Any], kind: str, where: str) -> Iterator[InputSet]:
    for number, call in enumerate(calls):
        try:
            (inputs,) = as_input_sets([call], kind)
        except PipelineError as error:
            mistakes = (line.removeprefix(f"{kind} 0") for line in error.lines)
            raise SourceError(
                *(f"{where}: {kind} {number}{mistake}" for mistake in mistakes)
            ) from error
        yield replace(inputs, origin=f"{kind} {number}")


def parse_examples(
    module: ModuleType,
    programs: Mapping[str, ExportedProgram],
    returned: Mapping[str, Any],
) -> dict[str, list[InputSet]]:
    """Return the examples of each method from the results of the exporter's function.

    Raises SourceError with the mistakes of all methods.
    """
    examples: dict[str, list[InputSet]] = {}
    mistakes: list[str] = []
    for name, program in programs.items():
        try:
            inputs = parse_inputs(module, "example", name, program, returned[name])
            examples[name] = list(inputs)
        except SourceError as error:
            mistakes += error.args
    if mistakes:
        raise SourceError(*mistakes)
    return examples
