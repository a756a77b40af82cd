"""Wraps partitioners as a package config asks.

They are kept out of branches, limited to the modules that a feature selects, and measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from executorch.exir.backend.partitioner import Partitioner, PartitionResult
from torch.export import ExportedProgram
from torch.fx import Node

from pipeline.backends import PartitionerSpec, make_partitioners, with_partitioner
from pipeline.compile.inspect.uptake import measure_uptake
from pipeline.compile.shared_constants import SharedConstantsError
from pipeline.moments import call_all
from pipeline.program.graphs import control_flow_bodies, feeds_control_flow
from pipeline.program.operators import TAG
from pipeline.store.errors import PipelineError


def make_filtered_partitioners(
    specs: Iterable[PartitionerSpec], modules: Sequence[str] | None = None
) -> list[FilteredPartitioner]:
    """Make a method's partitioners, in order, leaving out backends that lower by passes.

    Args:
        modules: qualified names of the submodules to which delegation is limited.
    """
    specs = with_partitioner(specs)
    return [
        FilteredPartitioner(partitioner, (modules, spec.modules), spec)
        for partitioner, spec in zip(make_partitioners(specs), specs, strict=True)
    ]


class FilteredPartitioner(Partitioner):
    """A partitioner that is limited to some modules and that features can follow.

    Args:
        allowed: lists of module names; a node must be in one module of each list.
        config: the item of a package config that the partitioner was made from, if any.

    Attributes:
        selection: the nodes that it may delegate, as returned by the moment `select_modules`; None
            means all.
        listed: the names in the config's options, looked up in this method by a feature.
        warnings: where the backend diverges from the config for this method; set by `partition`.
        uptake: the operators that it was offered and took; set by `partition`.
    """

    def __init__(
        self,
        inner: Partitioner,
        allowed: Iterable[Sequence[str] | None] = (),
        config: PartitionerSpec | None = None,
    ) -> None:
        super().__init__()
        self.inner = inner
        self.config = config
        self.listed: list[dict[str, Any]] = []
        self.warnings: list[str] = []
        self.uptake: dict[str, Any] | None = None
        self.filters = [tuple(names) for names in allowed if names is not None]
        self.selection = select_modules(self.filters)
        if hasattr(inner, "delegation_spec"):
            self.delegation_spec = inner.delegation_spec

    def ops_to_not_decompose(
        self, ep: ExportedProgram
    ) -> tuple[list[torch._ops.OpOverload], Callable[[Node], bool] | None]:
        """Return the partitioner's operators, except for nodes that it may not or can't delegate.

        Partitioners that check each node (canonical_partitioners/config_partitioner.py) look only
        at the outermost graph. An operator left whole in a branch fails as "not decomposed or
        delegated".
        """
        preserved, check = self.inner.ops_to_not_decompose(ep)
        branches = check is not None and control_flow_bodies(ep.graph_module)
        if self.selection is None and not branches:
            return preserved, check
        outermost = ep.graph_module.graph

        def is_preserved(node: Node) -> bool:
            if self.selection is not None and not self.selection.allows(node):
                return False
            return check is None or (node.graph is outermost and check(node))

        return preserved, is_preserved

    def transform_for_pre_decomposition(
        self, exported_program: ExportedProgram
    ) -> ExportedProgram:
        """Return the program as the partitioner transforms it before decomposition.

        ExecuTorch has called this method since version 1.5.
        """
        return self.inner.transform_for_pre_decomposition(exported_program)

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        """Partition a program within the selected modules, and measure the uptake.

        Raises SharedConstantsError if a delegate and control flow take the same constant.
        """
        with ExitStack() as stack:
            notes = []
            for context in call_all("follow_partition", self, exported_program):
                notes.append(stack.enter_context(context))
            result = self.inner.partition(exported_program)
        program = result.tagged_exported_program
        for node in program.graph.nodes:
            if node.op == "get_attr" and feeds_control_flow(
                node
            ):  # Core ML's partitioner takes all of them
                node.meta.pop(TAG, None)
        if self.selection is not None:
            tags = self.selection.cut(program, result.partition_tags)
            result = PartitionResult(program, tags)
        _refuse_shared_constants(program)
        for note in notes:
            note(program)
        if self.config is not None:
            self.uptake = measure_uptake(self.config, program)
            check = self.config.backend.lowering.check
            if check is not None:
                self.warnings = list(check(self.config.options, program))
        return result


def select_modules(lists: Sequence[Sequence[str]]) -> Any:
    """Return the nodes that are inside one module of each list, or None without lists.

    The result is a `features.module_selection.selection.ModuleSelection`. Raises PipelineError if
    that feature isn't installed.
    """
    if not lists:
        return None
    for selection in call_all("select_modules", lists):
        return selection
    raise PipelineError('this installation has no feature "module_selection"')


def check_modules(
    programs: Mapping[str, ExportedProgram],
    partitioners: Mapping[str, Sequence[Partitioner]],
) -> None:
    """Check the module names that partitioners are limited to against their methods.

    Raises PipelineError, listing all names that match no module or are ambiguous.
    """
    problems = []
    for method, method_partitioners in partitioners.items():
        filters: list[tuple[str, ...]] = []
        for partitioner in method_partitioners:
            if isinstance(partitioner, FilteredPartitioner):
                filters += partitioner.filters
        selection = select_modules(filters)
        if selection is None:
            continue
        where = f"{method}: " if method else ""  # a single program has no name
        for mistake in selection.find_mistakes(programs[method]):
            problems.append(f"{where}{mistake}")
    if problems:
        raise PipelineError(*problems)


def _refuse_shared_constants(program: ExportedProgram) -> None:
    """Raise SharedConstantsError if a delegate and control flow take the same constants."""
    shared = []
    for node in program.graph.find_nodes(op="placeholder"):
        if TAG in node.meta and feeds_control_flow(node):
            shared.append(node.name)
    if shared:
        raise SharedConstantsError(*shared)
