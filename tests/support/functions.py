"""A backend that is just a preprocess function, and a partitioner for it."""

from __future__ import annotations

import torch
from executorch.exir.backend.backend_details import PreprocessResult
from executorch.exir.backend.compile_spec_schema import CompileSpec
from executorch.exir.backend.partitioner import DelegationSpec, Partitioner, PartitionResult
from executorch.exir.backend.utils import tag_constant_data
from executorch.exir.dialects._ops import ops

from pipeline.backends import Backend, Host, Lowering, Options, Preprocessing

BACKEND_ID = "TextBackend"
calls: list[list[str]] = []


def preprocess(program, compile_specs):
    """Return the names of the operators and the compile specs as text."""
    operators = [n.target.__name__ for n in program.graph.nodes if n.op == "call_function"]
    calls.append(operators)
    lines = [*operators, *(f"{each.key}={each.value!r}" for each in compile_specs)]
    return PreprocessResult(processed_bytes="\n".join(lines).encode())


def nothing(program, compile_specs):
    return b"not a result"


class Linears(Partitioner):
    """A partitioner that gives each linear layer a partition."""

    def __init__(self, backend_id: str = BACKEND_ID, *specs: CompileSpec) -> None:
        super().__init__()
        self.delegation_spec = DelegationSpec(backend_id, list(specs))

    def partition(self, exported_program):
        tags = {}
        for node in exported_program.graph.nodes:
            if node.target in (ops.edge.aten.addmm.default, ops.edge.aten.linear.default):
                node.meta["delegation_tag"] = f"linear{len(tags)}"
                tags[f"linear{len(tags)}"] = self.delegation_spec
        tag_constant_data(exported_program)
        return PartitionResult(exported_program, tags)


def entry(function="tests.support.functions:preprocess", facts=None, **preprocessing):
    return Backend(
        name="text",
        backend_id=BACKEND_ID,
        summary="for tests",
        options=Options,
        lowering=Lowering(make_partitioner=lambda options: Linears()),
        preprocessing=Preprocessing(function=function, **preprocessing),
        host=Host(facts=facts),
    )


def payloads(program):
    """Return the payloads of the outermost graph's delegates, in order."""
    modules = program.graph_module._modules.values()
    return [m.processed_bytes for m in modules if hasattr(m, "processed_bytes")]


class Two(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

    def forward(self, x):
        return self.second(torch.relu(self.first(x)))
