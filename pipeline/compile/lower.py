"""Lowers ATen programs to edge programs with delegates, by ExecuTorch's own call."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from executorch.exir import (
    EdgeCompileConfig,
    EdgeProgramManager,
    to_edge_transform_and_lower,
)
from executorch.exir.backend.backend_api import MethodProgramsPartitionerSpec
from executorch.exir.backend.partitioner import Partitioner
from executorch.exir.program import _program
from torch.export import ExportedProgram

from pipeline.compile.delegate import delegate_methods
from pipeline.compile.module_filter import FilteredPartitioner, check_modules
from pipeline.compile.shared_constants import retry_with_separate_constants
from pipeline.moments import within_all
from pipeline.program.patching import replaced
from pipeline.store.errors import PipelineError, describe_error
from pipeline.store.store import Store

# What conversion to Core ML, and making a delegate's program, raise about a state.
_FAILS_ON_STATES = re.compile(
    r"State model is supported only|was tagged to be consumed by"
)


def lower(
    programs: Mapping[str, ExportedProgram],
    method_to_partitioners: Mapping[str, Sequence[Partitioner]],
    constant_methods: Mapping[str, Any] | None = None,
    store: Store | None = None,
    edge: EdgeCompileConfig | None = None,
    passes: Mapping[str, Sequence[Callable[..., Any]]] | None = None,
    passes_after: Mapping[str, Sequence[Callable[..., Any]]] | None = None,
    delegates: bool = False,
    etrecord: bool = False,
) -> EdgeProgramManager:
    """Lower programs by `to_edge_transform_and_lower`, with `delegate_methods` in its middle.

    A constant that both a delegate and a branch want is given to each, where ExecuTorch gives up.

    Args:
        edge: how all of the programs become edge programs.
        passes, passes_after: the loaded passes over each method's edge program, before and after
            partitioners take their part.
        delegates: whether a method of the package has a partitioner, though none of these has.
        etrecord: keeps copies of the programs on their way for an ETRecord.

    Raises PipelineError for a module that is not there, and for a scan that torch can't lower.
    """
    check_modules(programs, method_to_partitioners)
    for program in programs.values():
        _detach_buffers(program)

    def attempt(separated: dict[str, ExportedProgram]) -> EdgeProgramManager:
        lowered = to_edge_transform_and_lower(
            separated,
            partitioner={
                name: list(items) for name, items in method_to_partitioners.items()
            },
            constant_methods=dict(constant_methods) if constant_methods else None,
            compile_config=edge or EdgeCompileConfig(),
            transform_passes={
                name: items for name, items in (passes or {}).items() if items
            }
            or None,
            generate_etrecord=etrecord,
        )
        if (
            delegates
        ):  # of the joint call, in which each partitioner leaves its manager's defaults
            lowered.compile_config = EdgeCompileConfig(_check_ir_validity=False)
        after = {
            name: list(items) for name, items in (passes_after or {}).items() if items
        }
        return lowered.transform(after) if after else lowered

    with (
        _lower_by_delegate_methods(store),
        within_all("explain_lowering", programs),
        _explain_by_warnings(method_to_partitioners),
        _raise_errors_of_passes(),
    ):
        return retry_with_separate_constants(programs, attempt)


def _detach_buffers(program: ExportedProgram) -> None:
    """Let no buffer of a program require gradients.

    One that a method changes in place does, where the method was exported with gradients on and has
    parameters that require them, and then ExecuTorch can't write it back: "a leaf Variable that
    requires grad is being used in an in-place operation".
    """
    buffers = program.graph_signature.inputs_to_buffers
    for node in program.graph.nodes:
        if node.op == "placeholder" and node.name in buffers:
            value = node.meta.get("val")
            if isinstance(value, torch.Tensor) and value.requires_grad:
                node.meta["val"] = value.detach()


def _lower_by_delegate_methods(store: Store | None) -> AbstractContextManager[None]:
    """Have `EdgeProgramManager` lower by `delegate_methods`, until it takes another itself."""

    def through(spec: MethodProgramsPartitionerSpec) -> dict[str, ExportedProgram]:
        programs = spec.method_to_edge_program
        partitioners = {}
        for name in programs:
            if name in spec.method_to_partitioner:
                partitioners[name] = (spec.method_to_partitioner[name],)
        return delegate_methods(programs, partitioners, store)

    return replaced(_program, "to_backend", lambda original: through)


@contextmanager
def _raise_errors_of_passes() -> Iterator[None]:
    """Raise the PipelineError of a pass itself, for which ExecuTorch raises one of its own."""
    try:
        yield
    except Exception as error:
        if isinstance(error.__cause__, PipelineError):
            raise error.__cause__ from error
        raise


@contextmanager
def _explain_by_warnings(
    partitioners: Mapping[str, Sequence[Partitioner]],
) -> Iterator[None]:
    """Raise PipelineError with what a backend was warned of in place of what it then fails on."""
    try:
        yield
    except PipelineError:
        raise
    except Exception as error:
        warnings = []
        for method, method_partitioners in partitioners.items():
            for partitioner in method_partitioners:
                if isinstance(partitioner, FilteredPartitioner):
                    warnings += [
                        f"{method}: {warning}" for warning in partitioner.warnings
                    ]
        if not warnings:
            raise
        if not _FAILS_ON_STATES.search(str(error)):
            warnings.append(describe_error(error))
        raise PipelineError(*warnings) from error
