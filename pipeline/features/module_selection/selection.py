"""The nodes of a program that stand in modules of a config, and partitions cut down to them.

ExecuTorch's partitioners look at a whole method. What one chose outside of the modules loses its
tag here. The rest of a partition may then depend on itself through what was taken out, so it is
split where needed; a partition that lies inside altogether is left as it was.
"""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from executorch.exir.backend.utils import tag_constant_data, tag_mutated_buffer
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node

from pipeline.compile.inspect.uptake import OUTSIDE
from pipeline.features.module_selection.names import check_names, stands_in
from pipeline.features.module_selection.split_partition import split_partition
from pipeline.program.graphs import graph_modules, iter_nodes
from pipeline.program.module_paths import outline_program
from pipeline.program.operators import TAG, base_name

_RANGE = "choose_qparams"


class ModuleSelection:
    """The nodes that stand in one module of each of some lists of names."""

    def __init__(self, lists: Iterable[Sequence[str]]) -> None:
        self._lists = tuple(lists)

    def allows(self, node: Node) -> bool:
        """Tell whether a node may be delegated."""
        return all(belongs_to(node, names) for names in self._lists)

    def find_mistakes(self, program: ExportedProgram) -> list[str]:
        """Return what is wrong with the names for a program, each once, with what would be right.

        A name is wrong if it names no module, or a module that is called several times.
        """
        outline = outline_program(program)
        mistakes: dict[tuple[str, str], None] = {}
        for names in self._lists:
            mistakes |= dict.fromkeys(check_names(names, outline))
        return [f"{mistake}; {hint}" for mistake, hint in mistakes]

    def describe_outside(self, program: ExportedProgram) -> Iterator[tuple[Node, str]]:
        """Yield the calls outside of the modules, with the config's words for it. A later one is
        the reason of a call that comes twice."""
        for names in self._lists:
            words = f"{OUTSIDE}: [{', '.join(names)}]`"
            for node in iter_nodes(program):
                if node.op == "call_function" and not belongs_to(node, names):
                    yield node, words

    def split(self, module: GraphModule, nodes: Iterable[Node]) -> list[list[Node]]:
        """Return the nodes of a graph that may be delegated, in parts that can be delegates.

        Raises PipelineError where other partitions depend on each other in a circle.
        """
        allowed = [node for node in nodes if self.allows(node)]
        return split_partition(module, allowed) if allowed else []

    def cut(self, program: ExportedProgram, tags: Mapping[str, Any]) -> dict[str, Any]:
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
            self._cut_graph(module, tags, remaining)
        if placeholders:
            tag_constant_data(program)
        if takes_changed:
            tag_mutated_buffer(program)
        return remaining

    def _cut_graph(
        self, module: GraphModule, tags: Mapping[str, Any], remaining: dict[str, Any]
    ) -> None:
        chosen: dict[str, list[Node]] = defaultdict(list)
        for node in module.graph.nodes:
            if TAG in node.meta:
                chosen[node.meta[TAG]].append(node)
        partly_outside = {}
        for tag, nodes in chosen.items():
            if all(map(self.allows, nodes)):
                remaining[tag] = tags[tag]
                continue
            for node in nodes:
                del node.meta[TAG]
            partly_outside[tag] = nodes
        # All tags are off by now, so that no partition that is yet to be cut is in the way.
        for tag, nodes in partly_outside.items():
            for number, part in enumerate(self.split(module, nodes)):
                for node in part:
                    node.meta[TAG] = f"{tag}_{number}"
                remaining[f"{tag}_{number}"] = tags[tag]


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
