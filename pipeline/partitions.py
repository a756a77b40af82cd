"""The digest of a partition: all that a backend's preprocess function can see of it.

A partition is a program in edge dialect. Its digest covers operators with their schemas, the whole
wiring of arguments, metadata, signature, sizes and the content of constants. What the backend's
`Sight` says that it does not see is left out, and its debug handles are numbered. Fields are
length-prefixed; nothing goes through `repr` of unknown objects, `hash`, pickle or set order. What
can't be described has no digest.
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
from torch.export import ExportedProgram
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode, ShapeEnv

from pipeline import digest
from pipeline.backends import Sight
from pipeline.digest import Digest

# Metadata that differs from one run to the next and that no preprocess function reads: stack traces
# and object ids, autograd's counter, the number that a partitioner gave the partition.
_VOLATILE = frozenset({"delegation_tag", "from_node", "seq_nr", "stack_trace"})
_TENSORS = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)


class UndescribableError(Exception):
    """The partition holds something of which a digest would have to guess."""


@dataclasses.dataclass(frozen=True)
class Partition:
    """What names a partition. `handles` are the debug handles that the digest leaves out, each
    once, in the order of the graph; `facts` are for people who ask why two partitions differ."""

    digest: Digest
    handles: tuple[int, ...]
    facts: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        return {"partition": self.digest, **self.facts}


def describe(
    program: ExportedProgram, compile_specs: Iterable[CompileSpec], sight: Sight
) -> Partition:
    """Two partitions with the same digest give the same, but for their handles, with one backend,
    one toolchain and the same compile specs. Raises UndescribableError."""
    writer = _Writer(sight, names=sight.names_count(program))
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
        "constants": digest.of_json(writer.contents),
        "compile_specs": [[spec.key, digest.of_bytes(bytes(spec.value))] for spec in compile_specs],
    }
    return Partition(Digest(writer.hasher.hexdigest()), tuple(writer.handles), facts)


class _Writer:
    """Feeds a hasher with a canonical, prefix-free spelling of a program.

    What is numbered instead of named gets the number of its first appearance, so that it still
    counts what is the same as what.
    """

    def __init__(self, sight: Sight, names: bool) -> None:
        self.hasher = blake3()
        self.handles: dict[int, int] = {}
        self.contents: list[Digest] = []
        self._sight = sight
        self._keep_names = names
        self._nodes: dict[torch.fx.Node, int] = {}
        self._names: dict[str, int] = {}
        self._symbols: dict[sympy.Symbol, int] = {}
        self._known: set[sympy.Symbol] = set()
        self._storages: dict[int, int] = {}
        self._modes: dict[Any, int] = {}
        self.value(names)

    def field(self, kind: str, data: bytes | str | int = b"") -> None:
        payload = data if isinstance(data, bytes) else str(data).encode()
        self.hasher.update(f"{kind}:{len(payload)}:".encode() + payload)

    def name(self, name: str) -> None:
        self.field("name", name if self._keep_names else _number(self._names, name))

    # The parts of a program

    def graph_module(self, module: torch.fx.GraphModule) -> None:
        nodes = list(module.graph.nodes)
        self.field("graph", len(nodes))
        self.value(module.meta)
        for node in nodes:
            _number(self._nodes, node)
        read = self._sight.read(nodes)
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
                self.content(value)
            else:
                raise UndescribableError(f"attribute {node.target} is {type(value).__name__}")
        else:
            self.value(node.target)

    def metadata(self, node: torch.fx.Node) -> None:
        left_out = _VOLATILE | self._sight.unread
        if self._sight.remap is not None:
            left_out |= {"debug_handle"}
            if node.op not in ("placeholder", "output"):  # those have the handles of other nodes
                self.handle(node.meta.get("debug_handle", "none"))
        self.value({key: value for key, value in node.meta.items() if key not in left_out})

    def handle(self, handle: Any) -> None:
        if type(handle) is int and handle not in self._sight.fixed_handles:
            self.field("handle", _number(self.handles, handle))
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
        if self._keep_names:
            known = sorted((str(s), str(r.lower), str(r.upper)) for s, r in constraints.items())
            self.value(known)
            return
        for symbol in self._symbols:  # those of other partitions are there too
            limits = constraints.get(symbol)
            self.value(None if limits is None else [str(limits.lower), str(limits.upper)])

    def constants(self, program: ExportedProgram) -> None:
        """In the order of the inputs that they are for; others are seen by their names only."""
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
                    self.content(table[name])

    # Values

    def value(self, value: Any) -> None:
        if isinstance(value, torch.fx.Node):
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
            self.symbolic(value.node)
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
            for field in dataclasses.fields(value):
                self.value([field.name, getattr(value, field.name)])
        else:
            raise UndescribableError(f"a {type(value).__module__}.{type(value).__qualname__}")

    # Sizes

    def symbolic(self, node: Any) -> None:
        expression = getattr(node, "expr", None)
        if not isinstance(expression, sympy.Basic):
            raise UndescribableError(f"a size of type {type(node).__qualname__}")
        self.expression(expression, node.shape_env)

    def expression(self, expression: sympy.Basic, environment: ShapeEnv | None) -> None:
        """A symbol counts with its range, and with the size that it had at export: passes take
        that for a size without an upper bound (exir/sym_util.py)."""
        found = [s for s in sympy.preorder_traversal(expression) if isinstance(s, sympy.Symbol)]
        names = {s: sympy.Symbol(f"s{_number(self._symbols, s)}", **s.assumptions0) for s in found}
        renamed = expression if self._keep_names else expression.xreplace(names)
        self.field("symbol", sympy.srepr(renamed))
        if environment is None:
            return
        for symbol in names:
            if symbol not in self._known:
                self._known.add(symbol)
                self.value(_facts(symbol, environment))

    def mode(self, mode: Any) -> None:
        """Of how sizes of new tensors are made up."""
        if mode not in self._modes:
            environment = mode.shape_env
            self.value([mode.static_shapes, None if environment is None else environment.settings])
        self.field("mode", _number(self._modes, mode))

    # Tensors

    def shape(self, tensor: torch.Tensor) -> None:
        self.field("tensor", str(tensor.dtype))
        self.value([*tensor.shape, "stride", *tensor.stride(), "order", *tensor.dim_order()])
        self.value([tensor.storage_offset(), str(tensor.device), tensor.requires_grad])

    def content(self, tensor: Any) -> None:
        """With all of its storage, which XNNPACK takes for the content (operators/node_visitor.py,
        `get_serialized_buffer_index`)."""
        kind = type(tensor)
        if kind not in _TENSORS or tensor.layout is not torch.strided or tensor.is_quantized:
            raise UndescribableError(f"a constant of type {kind.__qualname__}")
        if tensor.device.type != "cpu" or tensor.is_conj() or tensor.is_neg():
            raise UndescribableError(f"a constant on {tensor.device}, conjugated or negated")
        self.field("constant", kind.__qualname__)
        self.shape(tensor)
        storage = tensor.untyped_storage()
        flat = torch.empty(0, dtype=torch.uint8).set_(storage)
        content = self._contents.get(storage._cdata) or digest.of_bytes(memoryview(flat.numpy()))
        self._contents[storage._cdata] = content
        self.field("content", content)


def _facts(symbol: sympy.Symbol, environment: ShapeEnv) -> list[Any]:
    limits = environment.var_to_range.get(symbol)
    try:
        hint = int(environment.guarding_hint_or_throw(symbol))
    except GuardOnDataDependentSymNode:
        raise UndescribableError(f"a size that depends on data ({symbol})") from None
    return [None if limits is None else [str(limits.lower), str(limits.upper)], hint]


def _number(numbers: dict[Any, int], key: Any) -> int:
    return numbers.setdefault(key, len(numbers))
