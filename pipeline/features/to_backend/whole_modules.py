"""A partitioner that delegates sub-modules as a whole, whatever they contain."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from executorch.exir.backend.compile_spec_schema import CompileSpec
from executorch.exir.backend.partitioner import (
    DelegationSpec,
    Partitioner,
    PartitionResult,
)
from executorch.exir.backend.utils import tag_constant_data
from torch.export import ExportedProgram
from torch.fx import Node

from pipeline.compile.module_filter import select_modules
from pipeline.program.graphs import graph_modules
from pipeline.program.operators import TAG, control_flow_name


class WholeModulePartitioner(Partitioner):
    """Delegates the whole of some sub-modules to one backend, whatever they contain.

    Each module becomes one delegate, or several if one would depend on itself through other calls.
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
                nodes = filter(is_free, module.graph.nodes)
                for part in select_modules([(name,)]).split(module, nodes):
                    tag = f"{name}_{len(tags)}"
                    tags[tag] = self.delegation_spec
                    for node in part:
                        node.meta[TAG] = tag
        tag_constant_data(exported_program)
        return PartitionResult(exported_program, tags)
