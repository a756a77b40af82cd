"""Compiles one unit, a method or a joint group of methods, from its programs to an object.

A request holds all that lowering and emission need. This module knows no config, plan or workspace;
`compile_requests.py` makes the request from them. Listeners collect facts about the unit.
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
    """The methods of a unit and how to lower and emit them, by method where they may differ.

    Attributes:
        programs: in the order of the model.
        edge: ExecuTorch's config for all edge programs.
        passes: run on the edge programs before partitioning.
        passes_after: run on the programs after partitioning.
        delegates_beside: whether only other methods of the package have partitioners.
        etrecord: whether to keep copies of the intermediate programs for an ETRecord.
        shares_state: whether the methods share the memory of mutable buffers.
        make_emission: makes ExecuTorch's emission config for the lowered programs.
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
    """Compile the methods of a unit.

    Args:
        store: receives the blobs of the object.
        cache: holds preprocessing results and receives new ones.

    Returns:
        The emitted programs, the unit's object, and the facts of each method.
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
    """Lower the methods of a unit, using and filling the cache of preprocessing results."""
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
