"""Partitions a method: finds the nodes that the add/sub backend takes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from executorch.exir.backend.partitioner import DelegationSpec, Partitioner, PartitionResult
from executorch.exir.backend.utils import tag_constant_data
from torch.export import ExportedProgram
from torch.fx import Node
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import create_op_support

from pipeline.backends.add_sub.compiler import is_copy, refusal
from pipeline.program.graphs import control_flow_bodies, graph_modules, iter_nodes
from pipeline.program.source_lines import describe_node
from pipeline.store.errors import PipelineError


class AddSubPartitioner(Partitioner):
    """Takes what the compiler has an instruction for, in branches of control flow too.

    Args:
        backend_id: by what name programs call the delegate.
        whole: take every operator instead, so that the compiler refuses a method that has others.
    """

    def __init__(self, backend_id: str, whole: bool = False) -> None:
        super().__init__()
        self.delegation_spec = DelegationSpec(backend_id, [])
        self.whole = whole

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        """Raises PipelineError: there is control flow in a method that is to be taken whole."""
        main = exported_program.graph_module
        if self.whole and (calls := control_flow_bodies(main)):
            lines = (f"add_sub takes no control flow: {describe_node(node)}" for node in calls)
            raise PipelineError("\n".join(lines))
        takes = create_op_support(
            lambda _, node: node.op == "call_function" and (self.whole or not refusal(node))
        )
        tags: dict[str, DelegationSpec] = {}
        for module in graph_modules(main):
            proposer = CapabilityBasedPartitioner(module, takes, allows_single_node_partition=True)
            for partition in proposer.propose_partitions():
                if not self.whole and all(map(is_copy, partition.nodes)):
                    continue  # it would cost a call and save nothing
                tag = f"add_sub_{len(tags)}"
                tags[tag] = self.delegation_spec
                for node in partition.nodes:
                    node.meta["delegation_tag"] = tag
        tag_constant_data(exported_program)
        # It sees only those changed buffers whose first reader is the change itself.
        signature = exported_program.graph_signature
        for node in main.graph.nodes:
            if signature.inputs_to_buffers.get(node.name) in signature.buffers_to_mutate.values():
                node.meta.pop("delegation_tag", None)
        return PartitionResult(exported_program, tags)


@contextmanager
def reasons(partitioner: Partitioner, program: ExportedProgram) -> Iterator[dict[Node, str]]:
    """Give why nodes can't be taken, or would not be worth it, when the context ends."""
    found: dict[Node, str] = {}
    yield found
    for node in iter_nodes(program):
        if node.op == "call_function" and (reason := refusal(node)):
            found[node] = f"it {reason}"
        elif is_copy(node):
            found[node] = "it would copy, and compute nothing"
