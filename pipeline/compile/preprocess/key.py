"""The digest of a partition: all of it that a backend's preprocess function depends on.

A partition is a program in edge dialect. Its digest covers operators with their schemas, the whole
wiring of arguments, metadata, signature, sizes and the content of constants, in a canonical form in
which no value begins another: fields are length-prefixed, and nothing goes through `repr` of
unknown objects, `hash`, pickle or set order. What the backend's `CacheScope` leaves out is left
out, and its debug handles are numbered. What can't be hashed exactly has no digest.
"""

from __future__ import annotations

import dataclasses
import enum
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import sympy
import torch
from blake3 import blake3
from executorch.exir.backend.compile_spec_schema import CompileSpec
from torch._subclasses.fake_tensor import FakeTensor
from torch.export import ExportedProgram, graph_signature
from torch.fx import GraphModule, Node
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode, ShapeEnv

from pipeline.backends import CacheScope
from pipeline.compile.split_partition import TAG
from pipeline.program.operators import NOTES
from pipeline.store import digest
from pipeline.store.digest import Digest

_TENSORS = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
_SIGNATURE = graph_signature.__name__
# Metadata that differs from one run to the next and that no preprocess function reads: stack traces
# and object ids, autograd's counter, the number that a partitioner gave the partition, and why an
# earlier one left what is an input of it.
_VOLATILE = frozenset({TAG, "from_node", "seq_nr", "stack_trace", NOTES})


class UndescribableError(Exception):
    """A partition holds something that a digest would have to guess."""


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
    backend, one toolchain and the same compile specs. Raises UndescribableError.
    """
    hasher = _Hasher(scope, scope.names_count(program))
    hasher.graph_module(program.graph_module)
    signature = program.graph_signature
    hasher.value([signature.input_specs, signature.output_specs])
    hasher.ranges(program)
    hasher.constants(program)
    operators = Counter(
        str(getattr(node.target, "__name__", node.target))
        for node in program.graph.nodes
        if node.op == "call_function"
    )
    facts = {
        "nodes": len(program.graph.nodes),
        "operators": dict(operators),
        "constants": digest.hash_json([hasher.contents[each] for each in hasher.storages]),
        "compile_specs": [[s.key, digest.hash_bytes(bytes(s.value))] for s in compile_specs],
    }
    return Partition(Digest(hasher.hasher.hexdigest()), tuple(hasher.handles), facts)


class _Hasher:
    """Hashes a program, as far as a backend depends on it.

    What has no lasting name gets the number of its first appearance, so it still counts what is the
    same as what.
    """

    def __init__(self, scope: CacheScope, keep_names: bool) -> None:
        self.hasher = blake3()
        self.handles: dict[int, int] = {}
        self.storages: dict[int, int] = {}
        self.contents: dict[int, Digest] = {}  # of storages
        self._scope = scope
        self._keep_names = keep_names
        self._nodes: dict[Node, int] = {}
        self._names: dict[str, int] = {}
        self._objects: dict[str, int] = {}
        self._symbols: dict[sympy.Symbol, int] = {}
        self._known: set[sympy.Symbol] = set()
        self._modes: dict[Any, int] = {}
        self.value(keep_names)

    # Graphs

    def graph_module(self, module: GraphModule) -> None:
        nodes = list(module.graph.nodes)
        self.field("graph", len(nodes))
        self.value(module.meta)
        for node in nodes:
            _number(self._nodes, node)
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
                raise UndescribableError(f"attribute {node.target} is {type(value).__name__}")
        else:
            self.value(node.target)

    def metadata(self, node: Node) -> None:
        left_out = _VOLATILE | self._scope.unread
        if self._scope.remap is not None:
            left_out |= {"debug_handle"}
            if node.op not in ("placeholder", "output"):  # those have the handles of other nodes
                handle = node.meta.get("debug_handle", "none")
                if type(handle) is int and handle not in self._scope.fixed_handles:
                    self.field("handle", _number(self.handles, handle))
                else:
                    self.value(handle)
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
                identity = f"object {_number(self._objects, identity)}"
            numbered.append([identity + call + turn, list(module)])
        return numbered

    def ranges(self, program: ExportedProgram) -> None:
        constraints = program.range_constraints
        if self._keep_names:
            self.value(sorted((str(s), _limits(each)) for s, each in constraints.items()))
            return
        for symbol in self._symbols:  # those of other partitions are there too
            self.value(_limits(constraints.get(symbol)))

    def constants(self, program: ExportedProgram) -> None:
        """Hash constants in the order of their inputs; others are found by their names only."""
        specs = program.graph_signature.input_specs
        names = dict.fromkeys(spec.target for spec in specs if spec.target is not None)
        tables = (program.state_dict, program.constants)
        if self._keep_names:
            names |= dict.fromkeys(sorted(name for table in tables for name in table))
        for name in names:
            self.name(name)
            for table in tables:
                self.field("tensor", str(name in table))
                if name in table:
                    self.constant(table[name])

    # Values

    def field(self, kind: str, data: bytes | str | int = b"") -> None:
        payload = data if isinstance(data, bytes) else str(data).encode()
        self.hasher.update(f"{kind}:{len(payload)}:".encode() + payload)

    def name(self, name: str) -> None:
        self.field("name", name if self._keep_names else _number(self._names, name))

    def value(self, value: Any) -> None:
        if isinstance(value, Node):
            self.field("node", self._nodes[value])
        elif isinstance(value, Mapping):
            self.field("map", len(value))
            for key in sorted(value, key=str):
                self.value(key)
                self.value(value[key])
        elif isinstance(value, list | tuple):
            self.field("tuple" if isinstance(value, tuple) else "list", len(value))
            for element in value:
                self.value(element)
        elif isinstance(value, FakeTensor):
            self.shape(value)
            self.mode(value.fake_mode)
            self.value(value.constant is not None)
            if value.constant is not None:  # passes then compute with it
                self.content(value.constant)
        elif isinstance(value, torch.Tensor):
            self.content(value)
        else:
            self.leaf(value)

    def leaf(self, value: Any) -> None:
        if isinstance(value, bool | int | str | bytes | None):
            self.field(type(value).__name__, value if isinstance(value, bytes) else str(value))
        elif isinstance(value, float):
            self.field("float", value.hex())
        elif isinstance(value, enum.Enum):
            self.field("enum", f"{type(value).__qualname__}.{value.name}")
        elif isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
            self.expression(getattr(value.node, "expr", None), value.node)
        elif isinstance(value, sympy.Basic):
            self.expression(value, None)
        elif isinstance(value, torch.dtype | torch.device | torch.layout | torch.memory_format):
            self.field("torch", str(value))
        elif isinstance(schema := getattr(value, "_schema", None), torch.FunctionSchema):
            self.field("operator", f"{type(value).__name__} {schema}")
        elif isinstance(value, type) or hasattr(value, "__qualname__"):
            self.field("function", f"{value.__module__}.{value.__qualname__}")
        elif isinstance(value, torch._ops.HigherOrderOperator):
            self.field("operator", value.name())
        elif dataclasses.is_dataclass(value):
            self.field("record", type(value).__qualname__)
            # Those of a signature name nodes and tensors.
            named = ("name", "target") if type(value).__module__ == _SIGNATURE else ()
            for field in dataclasses.fields(value):
                own = getattr(value, field.name)
                self.value(field.name)
                if field.name in named and isinstance(own, str):
                    self.name(own)
                else:
                    self.value(own)
        else:
            raise UndescribableError(f"a {type(value).__module__}.{type(value).__qualname__}")

    # Sizes

    def expression(self, expression: Any, node: Any) -> None:
        """Hash an expression; a symbol counts with its range and the size that it had at export."""
        # Passes take that size where there is no upper bound (exir/sym_util.py).
        if not isinstance(expression, sympy.Basic):
            raise UndescribableError(f"a size of type {type(node).__qualname__}")
        found = [s for s in sympy.preorder_traversal(expression) if isinstance(s, sympy.Symbol)]
        names = {s: sympy.Symbol(f"s{_number(self._symbols, s)}", **s.assumptions0) for s in found}
        renamed = expression if self._keep_names else expression.xreplace(names)
        self.field("symbol", sympy.srepr(renamed))
        for symbol in names if node is not None else ():
            if symbol not in self._known:
                self._known.add(symbol)
                self.value(_symbol_facts(symbol, node.shape_env))

    def mode(self, mode: Any) -> None:
        """Hash the fake-tensor mode: how it makes up the sizes of new tensors."""
        if mode not in self._modes:
            environment = mode.shape_env
            self.value([mode.static_shapes, None if environment is None else environment.settings])
        self.field("mode", _number(self._modes, mode))

    # Tensors

    def shape(self, tensor: torch.Tensor) -> None:
        self.field("tensor", str(tensor.dtype))
        self.value([*tensor.shape, "stride", *tensor.stride(), "order", *tensor.dim_order()])
        self.value([tensor.storage_offset(), str(tensor.device), tensor.requires_grad])

    def constant(self, tensor: Any) -> None:
        self.content(tensor)
        self.field("storage", _number(self.storages, tensor.untyped_storage()._cdata))

    def content(self, tensor: Any) -> None:
        """Hash a tensor with all of its storage, which XNNPACK takes for the content."""
        # See operators/node_visitor.py, `get_serialized_buffer_index`.
        kind = type(tensor)
        if kind not in _TENSORS or tensor.layout is not torch.strided or tensor.is_quantized:
            raise UndescribableError(f"a constant of type {kind.__qualname__}")
        if tensor.device.type != "cpu" or tensor.is_conj() or tensor.is_neg():
            raise UndescribableError(f"a constant on {tensor.device}, conjugated or negated")
        self.field("constant", kind.__qualname__)
        self.shape(tensor)
        storage = tensor.untyped_storage()
        if storage._cdata not in self.contents:
            flat = torch.empty(0, dtype=torch.uint8).set_(storage)
            self.contents[storage._cdata] = digest.hash_bytes(memoryview(flat.numpy()))
        self.field("content", self.contents[storage._cdata])


def _symbol_facts(symbol: sympy.Symbol, environment: ShapeEnv) -> list[Any]:
    try:
        hint = int(environment.guarding_hint_or_throw(symbol))
    except GuardOnDataDependentSymNode:
        raise UndescribableError(f"a size that depends on data ({symbol})") from None
    return [_limits(environment.var_to_range.get(symbol)), hint]


def _limits(limits: Any) -> list[str] | None:
    return None if limits is None else [str(limits.lower), str(limits.upper)]


def _number(numbers: dict[Any, int], key: Any) -> int:
    """Return the number of a key, the next one if it is new."""
    return numbers.setdefault(key, len(numbers))
