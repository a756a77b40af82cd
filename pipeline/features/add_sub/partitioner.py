"""Partitions a method: finds the nodes that the add/sub backend can compile."""

from __future__ import annotations

from executorch.exir.backend.partitioner import (
    DelegationSpec,
    Partitioner,
    PartitionResult,
)
from executorch.exir.backend.utils import tag_constant_data
from torch.export import ExportedProgram
from torch.fx import Node
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import create_op_support

from pipeline.features.add_sub.compiler import OPERATIONS, has_instruction
from pipeline.program.graphs import graph_modules


class AddSubPartitioner(Partitioner):
    """Selects nodes that the compiler has an instruction for, including those in branches."""

    delegation_spec = DelegationSpec("AddSubBackend", [])

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        support = create_op_support(_is_taken)
        tags: dict[str, DelegationSpec] = {}
        for module in graph_modules(exported_program.graph_module):
            proposer = CapabilityBasedPartitioner(
                module, support, allows_single_node_partition=True
            )
            for partition in proposer.propose_partitions():
                tag = f"add_sub_{len(tags)}"
                tags[tag] = self.delegation_spec
                for node in partition.nodes:
                    node.meta["delegation_tag"] = tag
        tag_constant_data(exported_program)
        # State stays outside; the line above also tags buffers that are read before a mutation.
        signature = exported_program.graph_signature
        for node in exported_program.graph.nodes:
            if (
                signature.inputs_to_buffers.get(node.name)
                in signature.buffers_to_mutate.values()
            ):
                node.meta.pop("delegation_tag", None)
        return PartitionResult(exported_program, tags)


def _is_taken(_: object, node: Node) -> bool:
    if node.op != "call_function" or not has_instruction(node):
        return False
    # A cast by itself would cost a delegate call and save none.
    return OPERATIONS[node.target] != "cast" or any(map(has_instruction, node.users))
