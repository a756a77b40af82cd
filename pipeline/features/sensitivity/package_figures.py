"""Runs packages of a method against its float program, and times them; in a separate process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pipeline.config.validation import ValidateConfig
from pipeline.features.sensitivity.calls import compare_calls, load_calls
from pipeline.features.sensitivity.rows import round_decibels
from pipeline.features.sensitivity.timing import Content, open_method, time_variants
from pipeline.program.graphs import iter_nodes
from pipeline.program.inputs import InputSet
from pipeline.program.module_paths import Outline, innermost_module, outline_program
from pipeline.program.signature import flatten
from pipeline.program.sources import MethodSource
from pipeline.store.errors import DeviceError
from pipeline.store.workspace import Workspace

_MOST_CALLS = 8  # examples, evenly spaced among all of them


def measure_packages(
    contents: Sequence[Content],
    source: MethodSource,
    method: str,
    libraries: Sequence[str],
    validation: ValidateConfig,
    workspace: Workspace,
) -> dict[str, Any]:
    """Return the figures of packages of a method.

    Returns:
        `base_ms`, `slower`: as in `timing.time_variants`, on the first example.
        `sqnr_db`: of each package against the float program, for the worst output on the worst
            example; None if this machine can't run it.
        `calls`: the number of examples.
        `modules`: the method's modules with operators of their own, in the order of the program.
        `names`: by called module, the names with which a config covers all its calls, and all
            modules that share its weights.
    """
    program, examples, expected = load_calls(
        source, method, libraries, validation, workspace, _MOST_CALLS
    )
    figures = time_variants(contents, method, flatten(program, examples[0]))
    figures["sqnr_db"] = [
        _measure_sqnr(content, method, program, examples, expected)
        for content in contents
    ]
    figures["calls"] = len(examples)
    figures["modules"] = _list_modules(program)
    outline = outline_program(program)
    figures["names"] = {name: _write_names(name, outline) for name in outline.calls}
    return figures


def _measure_sqnr(
    content: Content,
    method: str,
    program: Any,
    examples: Sequence[InputSet],
    expected: Sequence[Sequence[Any]],
) -> float | None:
    def run(inputs: InputSet) -> list[Any]:
        call = open_method(content, method)
        assert call is not None
        return call(flatten(program, inputs))

    if open_method(content, method) is None:
        return None
    try:
        return round_decibels(max(compare_calls(run, examples, expected)))
    except DeviceError:
        return None


def _list_modules(program: Any) -> list[str]:
    modules: dict[str, None] = {}
    for node in iter_nodes(program):
        if node.op == "call_function":
            modules[innermost_module(node)] = None
    return [module for module in modules if module]


def _write_names(module: str, outline: Outline) -> list[str]:
    called = [module]
    for aliases in outline.same:
        if module in aliases:
            called += [alias for alias in aliases if alias in outline.calls]
    written = []
    for name in dict.fromkeys(called):
        several = len(outline.calls[name]) > 1
        written.append(f"{name}@*" if several else name)
    return written
