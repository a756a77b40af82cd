"""The nodes of a program in the modules that a config names, and partitions cut down to them.

ExecuTorch's partitioners look at a whole method. Nodes that a partitioner chose outside the
modules lose their tags here. The rest of their partition may then depend on itself through the
removed nodes, so it is split if necessary; a partition entirely inside the modules is unchanged.
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
    """Lists of module names; a node is selected if each list names a module that contains it."""

    def __init__(self, lists: Iterable[Sequence[str]]) -> None:
        self._lists = tuple(lists)

    def allows(self, node: Node) -> bool:
        """Return whether a node may be delegated."""
        return all(belongs_to(node, names) for names in self._lists)

    def find_mistakes(self, program: ExportedProgram) -> list[str]:
        """Return the mistakes in the names as applied to a program, each once and with a hint.

        A mistake is, for example, the name of no module, or the bare name of a module that is
        called several times.
        """
        outline = outline_program(program)
        mistakes: dict[tuple[str, str], None] = {}
        for names in self._lists:
            mistakes |= dict.fromkeys(check_names(names, outline))
        return [f"{mistake}; {hint}" for mistake, hint in mistakes]

    def describe_outside(self, program: ExportedProgram) -> Iterator[tuple[Node, str]]:
        """Yield each call outside the modules, and why: the config's list that excludes it.

        A call that several lists exclude is yielded once for each; callers keep the last reason.
        """
        for names in self._lists:
            words = f"{OUTSIDE}: [{', '.join(names)}]`"
            for node in iter_nodes(program):
                if node.op == "call_function" and not belongs_to(node, names):
                    yield node, words

    def split(self, module: GraphModule, nodes: Iterable[Node]) -> list[list[Node]]:
        """Return the nodes that may be delegated, grouped into parts that can each be a delegate.

        Raises PipelineError if other partitions depend on each other in a cycle.
        """
        allowed = [node for node in nodes if self.allows(node)]
        return split_partition(module, allowed) if allowed else []

    def cut(self, program: ExportedProgram, tags: Mapping[str, Any]) -> dict[str, Any]:
        """Remove the tags of nodes outside the modules, in place, and return the remaining tags.

        The parts of a partition that is partly outside get new tags.
        """
        remaining: dict[str, Any] = {}
        signature = program.graph_signature
        changed = set(signature.buffers_to_mutate.values())
        placeholders = []
        takes_changed = False
        for node in iter_nodes(program):
            if TAG in node.meta and node.op == "placeholder":
                placeholders.append(node)
                takes_changed |= signature.inputs_to_buffers.get(node.name) in changed
        for node in placeholders:  # constants follow their users, see below
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
        # All of their tags are gone by now, so no partition still to be cut gets in the way.
        for tag, nodes in partly_outside.items():
            for number, part in enumerate(self.split(module, nodes)):
                for node in part:
                    node.meta[TAG] = f"{tag}_{number}"
                remaining[f"{tag}_{number}"] = tags[tag]


def belongs_to(node: Node, modules: Sequence[str]) -> bool:
    """Return whether a node belongs to one of these modules."""
    # Quantization puts its nodes between modules: a dequantize belongs to its reader, a quantize to
    # what it quantizes, or to its reader if the range is computed at run time.
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
