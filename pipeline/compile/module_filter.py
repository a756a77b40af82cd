"""Partitioners as a config asks for them: limited to sub-modules, and kept out of branches.

ExecuTorch's partitioners look at a whole method. What one chose outside the modules loses its tag
here. The rest of a partition may then depend on itself through what was taken out, so it is split
where needed; a partition that lies inside altogether is left as it was.
"""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from executorch.exir.backend.compile_spec_schema import CompileSpec
from executorch.exir.backend.partitioner import DelegationSpec, Partitioner, PartitionResult
from executorch.exir.backend.utils import tag_constant_data, tag_mutated_buffer
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node

from pipeline.backends import PartitionerSpec, make_partitioners, with_partitioner
from pipeline.compile.inspect.reasons import note_reasons, record_reasons
from pipeline.compile.inspect.uptake import OUTSIDE, Uptake, measure_uptake
from pipeline.compile.name_lists import ListedName, look_up_names
from pipeline.compile.shared_constants import SharedConstantsError
from pipeline.compile.split_partition import TAG, split_partition
from pipeline.program.graphs import (
    control_flow_bodies,
    feeds_control_flow,
    graph_modules,
    iter_nodes,
)
from pipeline.program.module_names import ModuleFilter, check_names
from pipeline.program.module_paths import outline_program
from pipeline.program.operators import base_name, control_flow_name
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
    """A partitioner of which only what stands in some modules is kept, with reasons for the rest.

    Args:
        allowed: sequences of module names; a node must stand in one module of each.
        config: the item of a package config that it was made of, if any.

    Attributes:
        listed: the names in options of the config, once it has partitioned.
        warnings: what its backend makes of the method otherwise than the config says, likewise.
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
        self.listed: list[ListedName] = []
        self.warnings: list[str] = []
        self.uptake: Uptake | None = None
        self.filters = [ModuleFilter(tuple(names)) for names in allowed if names is not None]
        if hasattr(inner, "delegation_spec"):
            self.delegation_spec = inner.delegation_spec

    def ops_to_not_decompose(
        self, ep: ExportedProgram
    ) -> tuple[list[torch._ops.OpOverload], Callable[[Node], bool] | None]:
        """Return the partitioner's operators, but decompose what it may not or can't delegate.

        Partitioners that check each node (canonical_partitioners/config_partitioner.py) look at the
        outermost graph only. What stays whole in a branch is "not decomposed or delegated".
        """
        kept, check = self.inner.ops_to_not_decompose(ep)
        branches = check is not None and control_flow_bodies(ep.graph_module)
        if not self.filters and not branches:
            return kept, check
        outermost = ep.graph_module.graph

        def wanted(node: Node) -> bool:
            return self._allows(node) and (
                check is None or (node.graph is outermost and check(node))
            )

        return kept, wanted

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        """Raises SharedConstantsError."""
        backend = None if self.config is None else self.config.backend
        if self.config is not None:
            self.listed = look_up_names(self.config, exported_program)
        with record_reasons(backend, self.inner, exported_program) as why:
            result = self.inner.partition(exported_program)
        program = result.tagged_exported_program
        for node in program.graph.nodes:
            if node.op == "get_attr" and feeds_control_flow(node):  # Core ML's takes every one
                node.meta.pop(TAG, None)
        if self.filters:
            result = PartitionResult(program, self._filter(program, result.partition_tags))
        shared = [
            node.name
            for node in program.graph.find_nodes(op="placeholder")
            if TAG in node.meta and feeds_control_flow(node)
        ]
        if shared:
            raise SharedConstantsError(*shared)
        outside = {
            node: f"{OUTSIDE}: [{', '.join(modules.names)}]`"
            for modules in self.filters
            for node in iter_nodes(program)
            if node.op == "call_function" and not _stands_in(node, modules)
        }
        note_reasons(backend, program, why, outside)
        if self.config is not None:
            self.uptake = measure_uptake(self.config, program)
        if self.config is not None and backend is not None and backend.lowering.check is not None:
            self.warnings = list(backend.lowering.check(self.config.options, program))
        return result

    def _allows(self, node: Node) -> bool:
        return all(_stands_in(node, modules) for modules in self.filters)

    def _filter(self, program: ExportedProgram, tags: dict[str, Any]) -> dict[str, Any]:
        """Take the tags from what stands outside, in place. Returns the tags that are left."""
        left: dict[str, Any] = {}
        signature = program.graph_signature
        tagged = (node for node in iter_nodes(program) if TAG in node.meta)
        placeholders = [node for node in tagged if node.op == "placeholder"]
        buffers = {signature.inputs_to_buffers.get(node.name) for node in placeholders}
        mutated = buffers & set(signature.buffers_to_mutate.values())
        for node in placeholders:  # constants go with their users, again below
            del node.meta[TAG]
        for module in graph_modules(program.graph_module):
            self._filter_graph(module, tags, left)
        if placeholders:
            tag_constant_data(program)
        if mutated:
            tag_mutated_buffer(program)
        return left

    def _filter_graph(
        self, module: GraphModule, tags: Mapping[str, Any], left: dict[str, Any]
    ) -> None:
        chosen: dict[str, list[Node]] = defaultdict(list)
        for node in module.graph.nodes:
            if TAG in node.meta:
                chosen[node.meta[TAG]].append(node)
        cut = {}
        for tag, nodes in chosen.items():
            kept = [node for node in nodes if self._allows(node)]
            if len(kept) == len(nodes):
                left[tag] = tags[tag]
                continue
            for node in nodes:
                del node.meta[TAG]
            if kept:
                cut[tag] = kept
        for tag, nodes in cut.items():
            for number, part in enumerate(split_partition(module, nodes)):
                for node in part:
                    node.meta[TAG] = f"{tag}_{number}"
                left[f"{tag}_{number}"] = tags[tag]


class WholeModulePartitioner(Partitioner):
    """Delegates the whole of some sub-modules to one backend, whatever they hold.

    Each module is a delegate, or several where one would depend on itself through other calls.
    """

    def __init__(
        self, backend_id: str, compile_specs: list[CompileSpec], modules: Sequence[str]
    ) -> None:
        super().__init__()
        self.delegation_spec = DelegationSpec(backend_id, compile_specs)
        self.modules = tuple(modules)

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        def is_free(node: Node) -> bool:
            calls = node.op == "call_function" and not control_flow_name(node)
            return calls and TAG not in node.meta

        tags: dict[str, Any] = {}
        for module in graph_modules(exported_program.graph_module):
            for name in self.modules:
                own = ModuleFilter((name,))
                nodes = [n for n in module.graph.nodes if is_free(n) and _stands_in(n, own)]
                for part in split_partition(module, nodes):
                    tag = f"{name}_{len(tags)}"
                    tags[tag] = self.delegation_spec
                    for node in part:
                        node.meta[TAG] = tag
        tag_constant_data(exported_program)
        return PartitionResult(exported_program, tags)


def check_modules(
    programs: Mapping[str, ExportedProgram], partitioners: Mapping[str, Sequence[Partitioner]]
) -> None:
    """Check the modules that partitioners are limited to against their methods.

    Raises PipelineError for all that are no modules, or do not say which of several calls.
    """
    wrong = []
    for method, own in partitioners.items():
        filters = [f for p in own if isinstance(p, FilteredPartitioner) for f in p.filters]
        if filters:
            outline = outline_program(programs[method])
            found = [each for modules in filters for each in check_names(modules.names, outline)]
            where = f"{method}: " if method else ""  # one program by itself has no name
            wrong += [f"{where}{what}; {known}" for what, known in dict.fromkeys(found)]
    if wrong:
        raise PipelineError(*wrong)


def _stands_in(node: Node, modules: ModuleFilter) -> bool:
    """Tell whether a node belongs to one of these modules."""
    # Quantization puts its nodes between modules: a dequantize goes with what reads it, a quantize
    # with what it quantizes, and with its reader where that has the range computed as it runs.
    name = base_name(node)
    item = node.target is operator.getitem
    source = node.args[0] if node.args and isinstance(node.args[0], Node) else None
    if item and source is not None and not base_name(source).startswith(_RANGE):
        return _stands_in(source, modules)
    computed = name.startswith("quantize") and any(
        isinstance(scale, Node) and scale.op == "call_function" for scale in node.args[1:3]
    )
    if name.startswith(("dequantize", _RANGE)) or item or computed:
        return any(_stands_in(user, modules) for user in node.users)
    if name.startswith("quantize"):
        return source is not None and _stands_in(source, modules)
    return modules.contains(node)
