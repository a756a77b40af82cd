"""The digest of a partition: all of it that a backend's preprocess function depends on.

A partition is a program in edge dialect. Its digest covers operators with their schemas, the whole
wiring of arguments, metadata, signature, sizes and the content of constants. What the backend's
`CacheScope` leaves out is left out, and its debug handles are numbered. What can't be described has
no digest.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from executorch.exir.backend.compile_spec_schema import CompileSpec
from torch.export import ExportedProgram

from pipeline.backends import CacheScope
from pipeline.compile.preprocess.hashing import CanonicalHasher, UndescribableError, number
from pipeline.program.operators import NOTES
from pipeline.store import digest
from pipeline.store.digest import Digest

# Metadata that differs from one run to the next and that no preprocess function reads: stack traces
# and object ids, autograd's counter, the number that a partitioner gave the partition, and why an
# earlier one left what is an input of it.
_VOLATILE = frozenset({"delegation_tag", "from_node", "seq_nr", "stack_trace", NOTES})


@dataclasses.dataclass(frozen=True)
class Partition:
    """The digest of a partition, and what it leaves out.

    `handles` are the debug handles that the digest leaves out, each once, in the order of the
    graph; `facts` are for people who ask why two partitions differ.
    """

    digest: Digest
    handles: tuple[int, ...]
    facts: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        return {"partition": self.digest, **self.facts}


def describe(
    program: ExportedProgram, compile_specs: Iterable[CompileSpec], scope: CacheScope
) -> Partition:
    """Describe a partition by its digest.

    Two partitions with the same digest become the same payload, but for their handles, with one
    backend, one toolchain and the same compile specs.

    Raises:
        UndescribableError: it holds something that can't be hashed exactly.
    """
    writer = _PartitionHasher(scope, scope.names_count(program))
    writer.graph_module(program.graph_module)
    writer.signature(program)
    writer.ranges(program)
    writer.constants(program)
    operators = Counter(
        str(getattr(node.target, "__name__", node.target))
        for node in program.graph.nodes
        if node.op == "call_function"
    )
    facts = {
        "nodes": len(program.graph.nodes),
        "operators": dict(operators),
        "constants": writer.constants_digest(),
        "compile_specs": [
            [spec.key, digest.hash_bytes(bytes(spec.value))] for spec in compile_specs
        ],
    }
    return Partition(Digest(writer.hasher.hexdigest()), tuple(writer.handles), facts)


class _PartitionHasher(CanonicalHasher):
    """Hashes a program, as far as a backend depends on it."""

    def __init__(self, scope: CacheScope, keep_names: bool) -> None:
        super().__init__(keep_names)
        self.handles: dict[int, int] = {}
        self.objects: dict[str, int] = {}
        self._scope = scope
        self.value(keep_names)

    def graph_module(self, module: torch.fx.GraphModule) -> None:
        nodes = list(module.graph.nodes)
        self.field("graph", len(nodes))
        self.value(module.meta)
        for node in nodes:
            number(self.nodes, node)
        read = self._scope.read(nodes)
        for node, seen in zip(nodes, read, strict=True):
            self.field(node.op)
            self.name(node.name)
            self.target(module, node)
            self.value(node.args)
            self.value([[key, value] for key, value in node.kwargs.items()])
            self.value(list(node.users))  # passes take the first one
            self.metadata(node)
            self.value(seen)

    def target(self, module: torch.fx.GraphModule, node: torch.fx.Node) -> None:
        if node.op in ("placeholder", "output"):
            self.name(str(node.target))
        elif node.op == "get_attr":
            self.name(str(node.target))
            value = getattr(module, str(node.target), None)
            if isinstance(value, torch.fx.GraphModule):
                self.graph_module(value)
            elif isinstance(value, torch.Tensor):
                self.constant(value)
            else:
                raise UndescribableError(f"attribute {node.target} is {type(value).__name__}")
        else:
            self.value(node.target)

    def metadata(self, node: torch.fx.Node) -> None:
        left_out = _VOLATILE | self._scope.unread
        if self._scope.remap is not None:
            left_out |= {"debug_handle"}
            if node.op not in ("placeholder", "output"):  # those have the handles of other nodes
                self.handle(node.meta.get("debug_handle", "none"))
        seen = {key: value for key, value in node.meta.items() if key not in left_out}
        if "nn_module_stack" in seen:
            seen["nn_module_stack"] = self.modules(seen["nn_module_stack"])
        self.value(seen)

    def modules(self, stack: Mapping[str, Any] | None) -> list[Any]:
        """Return a stack with numbers for the ids of objects, by which strict export keys it."""
        numbered = []
        for key, module in (stack or {}).items():
            identity, call, turn = str(key).partition("@")
            if identity.isdecimal():
                identity = f"object {number(self.objects, identity)}"
            numbered.append([identity + call + turn, list(module)])
        return numbered

    def handle(self, handle: Any) -> None:
        if type(handle) is int and handle not in self._scope.fixed_handles:
            self.field("handle", number(self.handles, handle))
        else:
            self.value(handle)

    def signature(self, program: ExportedProgram) -> None:
        signature = program.graph_signature
        for specs in (signature.input_specs, signature.output_specs):
            self.field("specs", len(specs))
            for spec in specs:
                self.value([spec.kind, getattr(spec, "persistent", None)])
                self.value(spec.target if spec.target is None else [])
                if spec.target is not None:
                    self.name(spec.target)
                self.argument(spec.arg)

    def argument(self, argument: Any) -> None:
        self.field("argument", type(argument).__qualname__)
        for field in dataclasses.fields(argument):
            value = getattr(argument, field.name)
            if field.name == "name" and isinstance(value, str):
                self.name(value)
            else:
                self.value(value)

    def ranges(self, program: ExportedProgram) -> None:
        constraints = program.range_constraints
        if self.keep_names:
            known = sorted((str(s), str(r.lower), str(r.upper)) for s, r in constraints.items())
            self.value(known)
            return
        for symbol in self.symbols:  # those of other partitions are there too
            limits = constraints.get(symbol)
            self.value(None if limits is None else [str(limits.lower), str(limits.upper)])

    def constants(self, program: ExportedProgram) -> None:
        """Hash constants in the order of their inputs; others are found by their names only."""
        specs = program.graph_signature.input_specs
        names = dict.fromkeys(spec.target for spec in specs if spec.target is not None)
        tables = (program.state_dict, program.constants)
        if self.keep_names:
            names |= dict.fromkeys(sorted(name for table in tables for name in table))
        for name in names:
            self.name(name)
            for table in tables:
                self.field("tensor", str(name in table))
                if name in table:
                    self.constant(table[name])

    def constants_digest(self) -> Digest:
        return digest.hash_json([self.contents[storage] for storage in self.storages])
