"""Enumerates the shapes that a method's inputs may have on a device, for Core ML.

The shapes in a config are checked against the method's program, or are derived from the program's
dynamic sizes. Upstream's partitioner then gets the compile spec that upstream makes from them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import sympy
import torch
from executorch.backends.apple.coreml.compiler import CoreMLBackend
from executorch.backends.apple.coreml.partition import CoreMLPartitioner
from executorch.exir.backend.compile_spec_schema import CompileSpec
from executorch.exir.backend.partitioner import DelegationSpec, PartitionResult
from torch.export import ExportedProgram

from pipeline.features.coreml.derived_sizes import with_derived_ranges
from pipeline.features.coreml.enumerated import MOST_SHAPES
from pipeline.program.argument_specs import Argument, TensorSpec, check_values
from pipeline.program.signature import (
    bounds,
    expression,
    iter_dynamic_sizes,
    leaf_signature,
    signature,
)
from pipeline.store.errors import PipelineError, did_you_mean

Shapes = Mapping[str, Sequence[Sequence[int]]]
Listed = str | Shapes  # "all", or the shapes of each input
# Upstream refuses any others (`_get_ct_inputs`).
_DTYPES = (torch.float16, torch.float32, torch.int32)


class EnumeratedPartitioner(CoreMLPartitioner):  # type: ignore[misc]
    """Core ML's partitioner for a method whose inputs have a few shapes."""

    delegation_spec: DelegationSpec

    def __init__(self, shapes: Listed, several: bool, **options: Any) -> None:
        super().__init__(**options)
        self._shapes = shapes
        self._several = several

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        """Partition with the shapes' compile spec.

        Raises PipelineError if the program doesn't take the shapes.
        """
        with with_derived_ranges([exported_program]):
            shapes = make_spec(exported_program, self._shapes, self._several)
        usual = self.delegation_spec
        specs = [*usual.compile_specs, shapes]
        self.delegation_spec = DelegationSpec(usual.backend_id, specs)
        try:
            return super().partition(exported_program)
        finally:
            self.delegation_spec = usual


def make_spec(program: ExportedProgram, shapes: Listed, several: bool) -> CompileSpec:
    """Return the compile spec of a program's shapes.

    Args:
        several: whether more than one input may have enumerated shapes, which requires ios18.

    Raises:
        PipelineError: the program does not take the shapes, or Core ML can't enumerate its inputs.
    """
    arguments = signature(program)
    _check_inputs(arguments)
    dynamic = list(
        dict.fromkeys(name.partition(".shape")[0] for name, _ in _sizes(arguments))
    )
    if not dynamic:
        raise _error("no input of the method has a dynamic size; leave out the option")
    by_name = (
        _all_shapes(program, arguments) if isinstance(shapes, str) else dict(shapes)
    )
    _check_names(by_name, dynamic, arguments)
    if len(dynamic) > 1 and not several:
        raise _error(
            f"{', '.join(dynamic)} have dynamic sizes, and shapes of more than one input need "
            f"minimum_deployment_target: ios18 or later"
        )
    _check_shapes(program, by_name)
    # Upstream takes the graph's input names, users give the model's, and nested inputs differ.
    names = [argument.name for argument in arguments]
    graph_names = dict(zip(names, program.graph_signature.user_inputs, strict=True))
    by_graph_name = {}
    for name in dynamic:
        by_graph_name[graph_names[name]] = [list(shape) for shape in by_name[name]]
    try:
        return CoreMLBackend.generate_enumerated_shapes_compile_spec(
            program, by_graph_name
        )
    except (AssertionError, ValueError) as error:
        raise _error(str(error)) from error


def _error(mistake: str) -> PipelineError:
    return PipelineError(f"coreml: enumerated_shapes: {mistake}")


def _sizes(arguments: Sequence[Argument]) -> list[tuple[str, torch.SymInt]]:
    return list(iter_dynamic_sizes(arguments))


def _check_inputs(arguments: Sequence[Argument]) -> None:
    """Raise PipelineError for inputs that Core ML doesn't take together with enumerated shapes."""
    names = ", ".join(str(dtype).removeprefix("torch.") for dtype in _DTYPES)
    for argument in arguments:
        if not isinstance(argument.value, torch.Tensor):
            raise _error(
                f"input {argument.name} is not a tensor, but methods with enumerated shapes take "
                "only tensors"
            )
        if argument.value.dtype not in _DTYPES:
            dtype = str(argument.value.dtype).removeprefix("torch.")
            raise _error(
                f"input {argument.name} is of {dtype}; with enumerated shapes, every input must "
                f"have one of the dtypes {names}: export the method like that, and cast the "
                "input in the model"
            )


def _check_names(
    shapes: Shapes, dynamic: Sequence[str], arguments: Sequence[Argument]
) -> None:
    """Raise PipelineError for an input that doesn't exist, has fixed sizes, or lacks shapes."""
    names = [argument.name for argument in arguments]
    for name in shapes:
        if name not in names:
            raise _error(f"the method has no input {name}; {did_you_mean(name, names)}")
        if name not in dynamic:
            raise _error(f"input {name} has a fixed size; leave it out")
    missing = [name for name in dynamic if name not in shapes]
    if missing:
        raise _error(
            f"lists no shapes of {', '.join(missing)}, whose sizes are dynamic"
        )


def _check_shapes(program: ExportedProgram, shapes: Shapes) -> None:
    """Raise PipelineError if the program doesn't take the shapes, alone or in combination."""
    for place in range(len(next(iter(shapes.values())))):
        pairs = []
        for argument in leaf_signature(program):
            if argument.name in shapes:
                shape = _export_shape(argument.value, shapes[argument.name][place])
                dtype = argument.value.dtype
                pairs.append((argument, torch.empty(shape, dtype=dtype, device="meta")))
        mistakes = check_values(pairs)
        if mistakes:
            texts = [f"{name} {list(listed[place])}" for name, listed in shapes.items()]
            raise _error(
                f"the method does not take {', '.join(texts)}: {'; '.join(mistakes)}"
            )


def _export_shape(spec: TensorSpec, shape: Sequence[int]) -> list[int]:
    """Return a shape with each 1 replaced by 2 if the dimension's minimum in the export is 2.

    torch exports no dynamic size with the minimum 1, and upstream uses 1 for such a dimension
    (`_create_enumeration_map`).
    """
    export_shape = list(shape)
    for dimension, extent in enumerate(spec.sizes[: len(shape)]):
        if shape[dimension] == 1 and extent.least == 2:
            export_shape[dimension] = 2
    return export_shape


def _all_shapes(
    program: ExportedProgram, arguments: Sequence[Argument]
) -> dict[str, list[list[int]]]:
    """Return the shapes of each dynamic input for all sizes that the program takes, ascending.

    Raises PipelineError if a size has no maximum, or if there are more shapes than Core ML takes.
    """
    ranges: dict[sympy.Symbol, range] = {}
    for shown, size in _sizes(arguments):
        for symbol in sorted(expression(size).free_symbols, key=str):
            least, greatest = bounds(program, symbol)
            if greatest is None:
                raise _error(
                    f"{shown} has no maximum; list the shapes, or export with `max`"
                )
            ranges.setdefault(symbol, range(max(least, 1), greatest + 1))
    count = math.prod(len(values) for values in ranges.values())
    if not 2 <= count <= MOST_SHAPES:
        shown = ", ".join(name for name, _ in _sizes(arguments))
        raise _error(
            f"all sizes of {shown} are {count} shapes, and Core ML takes 2 to {MOST_SHAPES}; "
            "list the ones that you need"
        )
    shapes: dict[str, list[list[int]]] = {}
    for values in itertools.product(*ranges.values()):
        sizes = {
            symbol: sympy.Integer(n) for symbol, n in zip(ranges, values, strict=True)
        }
        for argument in arguments:
            extents = [expression(size) for size in argument.value.shape]
            if any(extent.free_symbols for extent in extents):
                shape = [int(extent.xreplace(sizes)) for extent in extents]
                shapes.setdefault(argument.name, []).append(shape)
    return shapes
