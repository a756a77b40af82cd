"""Lowers ATen programs to edge programs with delegates, in ExecuTorch's joint call."""

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

# Errors about a state, from the conversion to Core ML and from extracting a delegate's program.
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
    """Lower programs with `to_edge_transform_and_lower`, delegating with `delegate_methods`.

    A constant that both a delegate and control flow take is given to each of them; ExecuTorch alone
    would fail.

    Args:
        edge: ExecuTorch's config for turning all programs into edge programs.
        passes, passes_after: the loaded passes over each method's edge program, before and after
            partitioning.
        delegates: whether only other methods of the package have partitioners.
        etrecord: whether to keep copies of intermediate programs, for an ETRecord.

    Raises:
        PipelineError: a partitioner is limited to a module that is missing or ambiguous, or torch
            can't lower a scan.
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
        if delegates:  # as after the joint call, where `to_backend` resets the config
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
    """Detach a program's buffers, so that none of them requires gradients.

    A buffer that a method changes in place requires them if the method was exported with gradients
    on and has parameters that require them. ExecuTorch then can't write the buffer back: "a leaf
    Variable that requires grad is being used in an in-place operation".
    """
    buffers = program.graph_signature.inputs_to_buffers
    for node in program.graph.nodes:
        if node.op == "placeholder" and node.name in buffers:
            value = node.meta.get("val")
            if isinstance(value, torch.Tensor) and value.requires_grad:
                node.meta["val"] = value.detach()


def _lower_by_delegate_methods(store: Store | None) -> AbstractContextManager[None]:
    """Make `EdgeProgramManager` delegate with `delegate_methods` within the context.

    This can go when `EdgeProgramManager` accepts another function itself.
    """

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
    """Raise the PipelineError of a pass in place of the error that ExecuTorch wraps around it."""
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
    """Replace an error of lowering with a PipelineError that has the partitioners' warnings.

    The error itself is added to the warnings unless it is about a state. Without warnings, it is
    raised unchanged.
    """
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
