"""Which nodes of a method the add/sub backend takes."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count

import torch
from executorch.exir.backend.partitioner import DelegationSpec, Partitioner, PartitionResult
from executorch.exir.backend.utils import tag_constant_data
from executorch.exir.graph_module import get_control_flow_submodules
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import OperatorSupportBase

from pipeline.backends.add_sub.compiler import is_copy, refusal
from pipeline.program.source_lines import told
from pipeline.store.errors import PipelineError

_TAG = "delegation_tag"


class AddSubPartitioner(Partitioner):
    """Takes what the compiler has an instruction for, in as few partitions as can be, branches of
    control flow included.

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
        if self.whole:
            _refuse_control_flow(exported_program.graph_module)
        tags: dict[str, DelegationSpec] = {}
        numbers = count()
        for module in _modules(exported_program.graph_module):
            partitioner = CapabilityBasedPartitioner(
                module, _Support(self.whole), allows_single_node_partition=True
            )
            for partition in partitioner.propose_partitions():
                if not self.whole and all(map(is_copy, partition.nodes)):
                    continue  # it would cost a call and save nothing
                tag = f"add_sub_{next(numbers)}"
                tags[tag] = self.delegation_spec
                for node in partition.nodes:
                    node.meta[_TAG] = tag
        tag_constant_data(exported_program)
        _leave_state_outside(exported_program)
        return PartitionResult(exported_program, tags)


class _Support(OperatorSupportBase):
    def __init__(self, whole: bool) -> None:
        super().__init__()
        self._whole = whole

    def is_node_supported(self, submodules: Mapping[str, torch.nn.Module], node: Node) -> bool:
        if node.op != "call_function":
            return False
        return self._whole or not refusal(node)


def refusals(program: ExportedProgram) -> dict[Node, str]:
    """Why nodes can't be taken, or would not be worth it."""
    nodes = (node for module in _modules(program.graph_module) for node in module.graph.nodes)
    return {
        node: f"it {reason}" if (reason := refusal(node)) else "it would copy, and compute nothing"
        for node in nodes
        if node.op == "call_function" and (refusal(node) or is_copy(node))
    }


def _modules(module: GraphModule) -> list[GraphModule]:
    branches = [branch for _, branch, _ in get_control_flow_submodules(module)]
    return [module, *(each for branch in branches for each in _modules(branch))]


def _refuse_control_flow(module: GraphModule) -> None:
    wrong = [node for _, _, node in get_control_flow_submodules(module)]
    if wrong:
        lines = [f"add_sub takes no control flow: {told(node)}" for node in dict.fromkeys(wrong)]
        raise PipelineError("\n".join(lines))


def _leave_state_outside(program: ExportedProgram) -> None:
    """A buffer that the method changes is an input of the delegate, not a constant of it.
    `tag_constant_data` sees only those whose first reader is the change itself."""
    signature = program.graph_signature
    changed = set(signature.buffers_to_mutate.values())
    for node in program.graph.nodes:
        if node.op == "placeholder" and signature.inputs_to_buffers.get(node.name) in changed:
            node.meta.pop(_TAG, None)
