"""Compile: one method, or one joint group, from its programs to an object.

Takes what lowers and emits the methods as a request, and knows no config, plan or workspace, from
which `perform_compile.py` makes it. What is worth knowing of the unit, listeners gather.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from executorch.exir import (
    EdgeCompileConfig,
    EdgeProgramManager,
    ExecutorchProgramManager,
)
from torch.export import ExportedProgram

from pipeline.compile.emission import MakeConfig, collect_named_data, emit_lowered
from pipeline.compile.lower import lower
from pipeline.compile.module_filter import FilteredPartitioner
from pipeline.compile.objects import MethodObject, make_object
from pipeline.compile.preprocess.spill import spilled_constants
from pipeline.compile.steps import timed_steps
from pipeline.moments import call_all
from pipeline.run.build.listening import CompileListener
from pipeline.run.stages import Stages
from pipeline.store.store import Store

Pass = Callable[..., Any]
Facts = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class CompileRequest:
    """The methods of a unit, and what lowers and emits them, by method where they may differ.

    Attributes:
        programs: in the order of the model.
        edge: ExecuTorch's config of all edge programs.
        passes: over the edge programs, before partitioners take their part.
        passes_after: over what they leave.
        delegates_beside: whether only other methods of the package have partitioners.
        etrecord: whether copies of the programs on their way are kept for an ETRecord.
        shares_state: whether the methods' mutable buffers are one memory.
        make_emission: makes ExecuTorch's config of emission, for the lowered programs.
    """

    programs: Mapping[str, ExportedProgram]
    partitioners: Mapping[str, Sequence[FilteredPartitioner]]
    edge: EdgeCompileConfig
    passes: Mapping[str, Sequence[Pass]]
    passes_after: Mapping[str, Sequence[Pass]]
    delegates_beside: bool
    etrecord: bool
    shares_state: bool
    make_emission: MakeConfig


def compile_unit(
    request: CompileRequest,
    store: Store,
    cache: Store | None,
    stages: Stages,
    listeners: Sequence[CompileListener] = (),
) -> tuple[ExecutorchProgramManager, MethodObject, Facts]:
    """Compile the methods of a unit; return what was emitted, its object, and by method its facts.

    Args:
        store: takes the blobs of the object.
        cache: holds results of preprocessing, and takes those that are new.
    """
    with _within(listener.listening() for listener in listeners):
        with stages.stage("lower"), timed_steps(stages.step):
            lowered = lower_request(request, cache)
        programs = {name: lowered.exported_program(name) for name in request.programs}
        if request.shares_state:
            list(call_all("check_shared_state", programs))
        with stages.stage("describe"):
            for listener in listeners:
                listener.add_lowered(programs)
            named = {
                name: collect_named_data(program) for name, program in programs.items()
            }
        facts: Facts = {name: {} for name in programs}
        with stages.stage("emit"), spilled_constants(cache):
            with _within(listener.emitting() for listener in listeners):
                manager = emit_lowered(lowered, request.make_emission)
            for listener in listeners:
                for name, fields in listener.find_facts(manager).items():
                    facts[name] |= fields
        with stages.stage("store"):
            linkable = make_object(manager, store, named if len(named) > 1 else {})
    return manager, linkable, facts


def lower_request(request: CompileRequest, cache: Store | None) -> EdgeProgramManager:
    """Lower the methods of a unit, with results of preprocessing from and for the cache."""
    return lower(
        request.programs,
        request.partitioners,
        store=cache,
        edge=request.edge,
        passes=request.passes,
        passes_after=request.passes_after,
        delegates=request.delegates_beside,
        etrecord=request.etrecord,
    )


@contextmanager
def _within(contexts: Iterable[AbstractContextManager[None]]) -> Iterator[None]:
    with ExitStack() as stack:
        for context in contexts:
            stack.enter_context(context)
        yield
