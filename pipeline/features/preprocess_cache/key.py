"""The digest of a partition: everything in it that a backend's preprocess function depends on.

A partition is a program in edge dialect. Its digest covers operators with their schemas, how all
arguments are wired, metadata, signature, sizes and the content of constants. The canonical form is
prefix-free: fields are length-prefixed, and nothing goes through `repr` of unknown objects, `hash`,
pickle or set order. The parts that the backend's `CacheScope` leaves out are omitted, and its debug
handles are numbered. A partition that can't be hashed exactly has no digest.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from executorch.exir.backend.compile_spec_schema import CompileSpec
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node

from pipeline.backends import CacheScope
from pipeline.features.preprocess_cache.value_hash import (
    UndescribableError,
    ValueHasher,
    limits_record,
    number_of,
)
from pipeline.program.operators import NOTES, TAG
from pipeline.store import digest
from pipeline.store.digest import Digest

# Metadata that differs between runs and that no preprocess function reads: stack traces and object
# ids, autograd's counter, the number that a partitioner gave the partition, and the reason why an
# earlier partitioner left a node that is now an input of the partition.
_VOLATILE = frozenset({TAG, "from_node", "seq_nr", "stack_trace", NOTES})


@dataclasses.dataclass(frozen=True)
class Partition:
    """The digest of a partition, and what the digest leaves out.

    `handles` are the debug handles that the digest leaves out, each once, in the order of the
    graph. `facts` are for people who ask why two partitions differ. `structure` is the digest of
    everything but the values of constants; it covers their dtypes, shapes and shared storages.
    """

    digest: Digest
    structure: Digest
    handles: tuple[int, ...]
    facts: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        return {"partition": self.digest, **self.facts}


def describe(
    program: ExportedProgram, compile_specs: Iterable[CompileSpec], scope: CacheScope
) -> Partition:
    """Return the description of a partition, with its digest.

    Given one backend, one toolchain and the same compile specs, two partitions with the same digest
    become the same payload, except for debug handles. Raises UndescribableError.
    """
    hasher = _ProgramHasher(scope, scope.names_count(program))
    hasher.graph_module(program.graph_module)
    signature = program.graph_signature
    hasher.value([signature.input_specs, signature.output_specs])
    hasher.ranges(program)
    hasher.forms(program)
    structure = hasher.digest()
    hasher.constants(program)
    operators: Counter[str] = Counter()
    for node in program.graph.nodes:
        if node.op == "call_function":
            operators[str(getattr(node.target, "__name__", node.target))] += 1
    contents = [hasher.contents[storage] for storage in hasher.storages]
    specs = []
    for spec in compile_specs:
        specs.append([spec.key, digest.hash_bytes(bytes(spec.value))])
    facts = {
        "nodes": len(program.graph.nodes),
        "operators": dict(operators),
        "constants": digest.hash_json(contents),
        "compile_specs": specs,
    }
    return Partition(
        hasher.digest(),
        structure,
        tuple(hasher.handles),
        facts,
    )


class _ProgramHasher(ValueHasher):
    """Hashes the parts of a program that a backend depends on."""

    def __init__(self, scope: CacheScope, keep_names: bool) -> None:
        super().__init__(keep_names)
        self.handles: dict[int, int] = {}
        self._scope = scope
        self._left_out = _VOLATILE | scope.unread
        if scope.remap is not None:
            self._left_out |= {"debug_handle"}
        self._objects: dict[str, int] = {}
        self.value(keep_names)

    def graph_module(self, module: GraphModule) -> None:
        nodes = list(module.graph.nodes)
        self.field("graph", len(nodes))
        self.value(module.meta)
        for node in nodes:
            number_of(self.nodes, node)
        read = self._scope.read(nodes)
        for node, read_values in zip(nodes, read, strict=True):
            self.field(node.op)
            self.name(node.name)
            self.target(module, node)
            self.value(node.args)
            self.value([[key, value] for key, value in node.kwargs.items()])
            self.value(list(node.users))  # passes use the first user
            self.metadata(node)
            self.value(read_values)

    def target(self, module: GraphModule, node: Node) -> None:
        if node.op in ("placeholder", "output"):
            self.name(str(node.target))
        elif node.op == "get_attr":
            self.name(str(node.target))
            value = getattr(module, str(node.target), None)
            if isinstance(value, GraphModule):
                self.graph_module(value)
            elif isinstance(value, torch.Tensor):
                self.constant(value)
            else:
                raise UndescribableError(
                    f"attribute {node.target} is {type(value).__name__}"
                )
        else:
            self.value(node.target)

    def metadata(self, node: Node) -> None:
        # Inputs and outputs have the handles of others.
        if self._scope.remap is not None and node.op not in ("placeholder", "output"):
            self.handle(node.meta.get("debug_handle", "none"))
        metadata = {}
        for key, value in node.meta.items():
            if key not in self._left_out:
                metadata[key] = value
        if "nn_module_stack" in metadata:
            metadata["nn_module_stack"] = self.modules(metadata["nn_module_stack"])
        self.value(metadata)

    def handle(self, handle: Any) -> None:
        """Hash a debug handle by its number, unless the backend gives the handle a meaning."""
        if type(handle) is int and handle not in self._scope.fixed_handles:
            self.field("handle", number_of(self.handles, handle))
        else:
            self.value(handle)

    def modules(self, stack: Mapping[str, Any] | None) -> list[Any]:
        """Return a module stack with object ids, strict export's keys, replaced by numbers."""
        numbered = []
        for key, module in (stack or {}).items():
            identity, call, turn = str(key).partition("@")
            if identity.isdecimal():
                identity = f"object {number_of(self._objects, identity)}"
            numbered.append([identity + call + turn, list(module)])
        return numbered

    def ranges(self, program: ExportedProgram) -> None:
        constraints = program.range_constraints
        if not self.keep_names:
            for symbol in self.symbols:  # skips symbols of other partitions
                self.value(limits_record(constraints.get(symbol)))
            return
        ranges = []
        for symbol, limits in constraints.items():
            ranges.append((str(symbol), limits_record(limits)))
        self.value(sorted(ranges))

    def forms(self, program: ExportedProgram) -> None:
        """Hash everything about constants except their values, in the order of their inputs."""
        for spec in program.graph_signature.input_specs:
            for table in (program.state_dict, program.constants):
                self.field("form", str(spec.target in table))
                if spec.target in table:
                    tensor: Any = table[spec.target]
                    self.form(tensor)
                    storage = tensor.untyped_storage()
                    self.value(
                        [storage.nbytes(), number_of(self.storages, storage._cdata)]
                    )

    def constants(self, program: ExportedProgram) -> None:
        """Hash constants in the order of their inputs, and all others by name if names count."""
        tables = (program.state_dict, program.constants)
        names = []
        for spec in program.graph_signature.input_specs:
            if spec.target is not None:
                names.append(spec.target)
        if self.keep_names:
            for name in sorted([*program.state_dict, *program.constants]):
                names.append(name)
        for name in dict.fromkeys(names):
            self.name(name)
            for table in tables:
                self.field("tensor", str(name in table))
                if name in table:
                    self.constant(table[name])
