"""Partitioners as a config asks for them: limited to sub-modules, and kept out of branches.

ExecuTorch's partitioners look at a whole method. What one chose outside of the modules loses its
tag here. The rest of a partition may then depend on itself through what was taken out, so it is
split where needed; a partition that lies inside altogether is left as it was.
"""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from executorch.exir.backend.partitioner import (
    Partitioner,
    PartitionResult,
)
from executorch.exir.backend.utils import tag_constant_data, tag_mutated_buffer
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node

from pipeline.backends import PartitionerSpec, make_partitioners, with_partitioner
from pipeline.compile.inspect.uptake import measure_uptake
from pipeline.compile.shared_constants import SharedConstantsError
from pipeline.compile.split_partition import TAG, split_partition
from pipeline.moments import call_all
from pipeline.program.graphs import (
    control_flow_bodies,
    feeds_control_flow,
    graph_modules,
    iter_nodes,
)
from pipeline.program.module_names import check_names, stands_in
from pipeline.program.module_paths import outline_program
from pipeline.program.operators import base_name
from pipeline.store.errors import PipelineError

_RANGE = "choose_qparams"


def make_filtered_partitioners(
    specs: Iterable[PartitionerSpec], modules: Sequence[str] | None = None
) -> list[FilteredPartitioner]:
    """Make the partitioners of a method, in their order; none for a backend that lowers by passes.

    Args:
        modules: qualified names of sub-modules outside of which nothing is delegated.
    """
    specs = with_partitioner(specs)
    return [
        FilteredPartitioner(partitioner, (modules, spec.modules), spec)
        for partitioner, spec in zip(make_partitioners(specs), specs, strict=True)
    ]


class FilteredPartitioner(Partitioner):
    """A partitioner limited to some modules, which features follow.

    Args:
        allowed: sequences of module names; a node must be in one module of each.
        config: the item of a package config that it was made of, if any.

    Attributes:
        listed: the names in options of the config, where a feature looks them up.
        warnings: where its backend departs from the config for this method, likewise.
        uptake: what it was offered and took, likewise.
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
        if hasattr(inner, "delegation_spec"):
            self.delegation_spec = inner.delegation_spec

    def ops_to_not_decompose(
        self, ep: ExportedProgram
    ) -> tuple[list[torch._ops.OpOverload], Callable[[Node], bool] | None]:
        """Return the partitioner's operators, but decompose what it may not or can't delegate.

        Partitioners that check each node (canonical_partitioners/config_partitioner.py) look at the
        outermost graph only. What stays whole in a branch is "not decomposed or delegated".
        """
        preserved, check = self.inner.ops_to_not_decompose(ep)
        branches = check is not None and control_flow_bodies(ep.graph_module)
        if not self.filters and not branches:
            return preserved, check
        outermost = ep.graph_module.graph

        def is_preserved(node: Node) -> bool:
            if not self._allows(node):
                return False
            return check is None or (node.graph is outermost and check(node))

        return preserved, is_preserved

    def transform_for_pre_decomposition(
        self, exported_program: ExportedProgram
    ) -> ExportedProgram:
        """Return the program as the partitioner wants it before decomposition, which ExecuTorch
        asks for since 1.5."""
        return self.inner.transform_for_pre_decomposition(exported_program)

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        """Raises SharedConstantsError."""
        with ExitStack() as stack:
            notes = []
            for context in call_all("follow_partition", self, exported_program):
                notes.append(stack.enter_context(context))
            result = self.inner.partition(exported_program)
        program = result.tagged_exported_program
        for node in program.graph.nodes:
            if node.op == "get_attr" and feeds_control_flow(
                node
            ):  # Core ML's takes every one
                node.meta.pop(TAG, None)
        if self.filters:
            result = PartitionResult(
                program, self._filter(program, result.partition_tags)
            )
        _refuse_shared_constants(program)
        for note in notes:
            note(program)
        if self.config is not None:
            self.uptake = measure_uptake(self.config, program)
            check = self.config.backend.lowering.check
            if check is not None:
                self.warnings = list(check(self.config.options, program))
        return result

    def _allows(self, node: Node) -> bool:
        return all(belongs_to(node, modules) for modules in self.filters)

    def _filter(self, program: ExportedProgram, tags: dict[str, Any]) -> dict[str, Any]:
        """Take the tags from what stands outside, in place. Returns the tags that are left."""
        remaining: dict[str, Any] = {}
        signature = program.graph_signature
        changed = set(signature.buffers_to_mutate.values())
        placeholders = []
        takes_changed = False
        for node in iter_nodes(program):
            if TAG in node.meta and node.op == "placeholder":
                placeholders.append(node)
                takes_changed |= signature.inputs_to_buffers.get(node.name) in changed
        for node in placeholders:  # constants go with their users, again below
            del node.meta[TAG]
        for module in graph_modules(program.graph_module):
            self._filter_graph(module, tags, remaining)
        if placeholders:
            tag_constant_data(program)
        if takes_changed:
            tag_mutated_buffer(program)
        return remaining

    def _filter_graph(
        self, module: GraphModule, tags: Mapping[str, Any], remaining: dict[str, Any]
    ) -> None:
        chosen: dict[str, list[Node]] = defaultdict(list)
        for node in module.graph.nodes:
            if TAG in node.meta:
                chosen[node.meta[TAG]].append(node)
        cut = {}
        for tag, nodes in chosen.items():
            allowed = [node for node in nodes if self._allows(node)]
            if len(allowed) == len(nodes):
                remaining[tag] = tags[tag]
                continue
            for node in nodes:
                del node.meta[TAG]
            if allowed:
                cut[tag] = allowed
        # All tags are off by now, so that no partition that is yet to be cut is in the way.
        for tag, nodes in cut.items():
            for number, part in enumerate(split_partition(module, nodes)):
                for node in part:
                    node.meta[TAG] = f"{tag}_{number}"
                remaining[f"{tag}_{number}"] = tags[tag]


def check_modules(
    programs: Mapping[str, ExportedProgram],
    partitioners: Mapping[str, Sequence[Partitioner]],
) -> None:
    """Check the modules that partitioners are limited to against their methods.

    Raises PipelineError for all names without a module, and for ambiguous ones.
    """
    problems = []
    for method, method_partitioners in partitioners.items():
        filters: list[tuple[str, ...]] = []
        for partitioner in method_partitioners:
            if isinstance(partitioner, FilteredPartitioner):
                filters += partitioner.filters
        if not filters:
            continue
        outline = outline_program(programs[method])
        faults: dict[tuple[str, str], None] = {}
        for names in filters:
            faults |= dict.fromkeys(check_names(names, outline))
        where = f"{method}: " if method else ""  # one program by itself has no name
        problems += [f"{where}{fault}; {hint}" for fault, hint in faults]
    if problems:
        raise PipelineError(*problems)


def _refuse_shared_constants(program: ExportedProgram) -> None:
    """Raise SharedConstantsError for constants that a delegate and control flow both take."""
    shared = []
    for node in program.graph.find_nodes(op="placeholder"):
        if TAG in node.meta and feeds_control_flow(node):
            shared.append(node.name)
    if shared:
        raise SharedConstantsError(*shared)


def belongs_to(node: Node, modules: Sequence[str]) -> bool:
    """Tell whether a node belongs to one of these modules."""
    # Quantization puts its nodes between modules: a dequantize goes with what reads it, a quantize
    # with what it quantizes, and with its reader where that has the range computed as it runs.
    name = base_name(node)
    source = None
    if node.args and isinstance(node.args[0], Node):
        source = node.args[0]
    if node.target is operator.getitem:
        if source is not None and not base_name(source).startswith(_RANGE):
            return belongs_to(source, modules)
        return _feeds(node, modules)
    if name.startswith(("dequantize", _RANGE)):
        return _feeds(node, modules)
    if name.startswith("quantize"):
        if any(isinstance(v, Node) and v.op == "call_function" for v in node.args[1:3]):
            return _feeds(node, modules)
        return source is not None and belongs_to(source, modules)
    return stands_in(node, modules)


def _feeds(node: Node, modules: Sequence[str]) -> bool:
    return any(belongs_to(user, modules) for user in node.users)
