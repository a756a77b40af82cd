"""Describes what quantization did to a method.

The facts are the shares of its weights and its compute that were quantized, and the tensors left in
floating point, with the reasons.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx import Node

from pipeline.backends.quantize_options import OVERRIDES, MixedQuantize
from pipeline.features.quantization.constant_nodes import find_constants
from pipeline.features.quantization.multiplications import count_multiplications
from pipeline.program.eager import find_effects
from pipeline.program.graphs import iter_nodes
from pipeline.program.module_paths import enclosing_modules
from pipeline.program.operators import base_name, control_flow_name, operator_name

MOST_LEFT = 10  # maximum number of floating-point tensors named
_CONSTANTS = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)
_VIEWS = frozenset(
    {
        "alias",
        "clone",
        "contiguous",
        "detach",
        "expand",
        "permute",
        "reshape",
        "select",
        "slice",
    }
    | {
        "squeeze",
        "t",
        "to",
        "_to_copy",
        "transpose",
        "unsqueeze",
        "view",
        "repeat_interleave",
    }
)
_BITS = frozenset({"bitwise_and", "bitwise_right_shift", "__rshift__"})
_FLOAT_BYTES = 4  # bytes of a weight before quantization
# Operators that take a scale and a zero point.
_TAKING_PARAMETERS = (
    "quantize",
    "dequantize",
    "choose_qparams",
    "embedding_byte",
    "embedding_4bit",
)


# A constant of the quantized program: its name, its node, its size as floats in bytes, and whether
# it is stored quantized.
_Weight = tuple[str, Node, int, bool]


def describe_quantization(
    program: ExportedProgram,
    quantized: ExportedProgram,
    spec: Any,
    origins: Sequence[Mapping[str, int]],
    calibration: Mapping[str, Any],
    observers: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Return the facts of a quantized method, as JSON (`store.quantized.QUANTIZATION_FACTS`).

    Args:
        origins: maps from the nodes of `quantized` to the nodes of `program` that they came from.
        calibration: the number of inputs that were observed, and their source.
        observers: as `ObserverRanges.to_json` returns them; None if there were no observers.
    """
    weights = _find_weights(quantized, program)
    total, within = _count_compute(quantized)
    whole = quantized_bytes = 0
    float_weights = []
    for name, node, size, is_quantized in weights:
        whole += size
        if is_quantized:
            quantized_bytes += size
        else:
            float_weights.append((-size, name, node))
    float_weights.sort(key=lambda weight: weight[:2])
    reasons = _Reasons(program, quantized, spec, origins)
    left_float = []
    for negative_size, name, node in float_weights[:MOST_LEFT]:
        reason = reasons.find(node)
        left_float.append({"name": name, "bytes": -negative_size, "why": reason})
    return {
        "quantizer": spec.quantizer,
        "activations": _describe_activations(quantized),
        "calibration": dict(calibration),
        "weights": {"bytes": whole, "quantized": quantized_bytes},
        "compute": {"multiplications": total, "quantized": within},
        "conversions": sum(_is_conversion(node) for node in iter_nodes(quantized)),
        "left_float": left_float,
        "observers": observers,
        "warnings": [],
    }


def _describe_activations(program: ExportedProgram) -> list[str]:
    """Return how activations are quantized: static, dynamic, both or not at all."""
    is_static = is_dynamic = False
    for node in iter_nodes(program):
        name = base_name(node)
        if name.startswith("choose_qparams"):
            is_dynamic = True
        elif name.startswith("quantize") and not _has_computed_scale(node):
            is_static = True
    kinds = []
    if is_static:
        kinds.append("static")
    if is_dynamic:
        kinds.append("dynamic")
    return kinds


def _has_computed_scale(node: Node) -> bool:
    for argument in node.all_input_nodes[1:]:
        for maker in argument.all_input_nodes:
            if base_name(maker).startswith("choose_qparams"):
                return True
    return False


def _is_conversion(node: Node) -> bool:
    return base_name(node).startswith(("quantize", "dequantize", "choose_qparams"))


def _is_dequantized(node: Any) -> bool:
    """Return whether a value comes from a dequantize operator, possibly through views."""
    while isinstance(node, Node) and node.op == "call_function":
        if base_name(node).startswith("dequantize"):
            return True
        if base_name(node) not in _VIEWS or not node.all_input_nodes:
            return False
        node = node.all_input_nodes[0]
    return False


def _has_quantized_weight(node: Node, constants: Set[Node]) -> bool:
    """Return whether an operator computes with a constant that is stored quantized.

    Args:
        constants: the nodes whose values come from constants alone.
    """
    if _is_conversion(node):
        return False
    weights = [value for value in node.all_input_nodes if value in constants]
    return any(map(_is_dequantized, weights))


def _is_lookup(node: Node) -> bool:
    """Return whether an operator looks up quantized rows, as embeddings do."""
    return operator_name(node).startswith("quantized_decomposed.embedding")


def _count_compute(program: ExportedProgram) -> tuple[int, int]:
    """Count the multiplications of a program, and those with both factors quantized."""
    total = within = 0
    for node in iter_nodes(program):
        if node.op != "call_function":
            continue
        count = count_multiplications(node)
        if not count:
            continue
        total += count
        factors = [
            value for value in node.all_input_nodes if not _is_addend(value, node)
        ][:2]
        if len(factors) == 2 and all(map(_is_dequantized, factors)):
            within += count
    return total, within


def _is_addend(value: Node, node: Node) -> bool:
    return (
        base_name(node) in ("addmm", "baddbmm", "addbmm", "addmv")
        and value is node.args[0]
    )


def _find_weights(
    quantized: ExportedProgram, program: ExportedProgram
) -> Iterator[_Weight]:
    """Yield the constants that a quantized program computes with, each storage once.

    State, scales, zero points and the model's original integers are left out.
    """
    state = {*find_effects(program).state}
    integers = _find_integers(program)
    tensors: dict[str, Any] = {**quantized.state_dict, **quantized.constants}
    nodes = {node.name: node for node in quantized.graph.find_nodes(op="placeholder")}
    visited: set[tuple[int, int, torch.Size]] = set()
    for spec in quantized.graph_signature.input_specs:
        name = str(spec.target)
        value = tensors.get(name)
        node = nodes.get(getattr(spec.arg, "name", ""))
        if spec.kind not in _CONSTANTS or node is None or not isinstance(value, Tensor):
            continue
        # Tied weights have several names and one storage.
        place = (
            value.untyped_storage().data_ptr(),
            value.storage_offset(),
            value.shape,
        )
        if name in state or place in visited or not node.users or _is_parameter(node):
            continue
        visited.add(place)
        if value.dtype.is_floating_point:
            yield name, node, value.nbytes, False
        elif name in integers:
            continue
        elif value.dtype in (torch.int8, torch.uint8):
            values = value.numel() * _values_per_byte(node)
            yield name, node, values * _FLOAT_BYTES, True
        elif _read_by(node, ("dequantize",)):
            yield name, node, value.numel() * _FLOAT_BYTES, True


def _find_integers(program: ExportedProgram) -> set[str]:
    """Return the names of constants that are integers before anything is quantized."""
    integers = set()
    for name, value in {**program.state_dict, **program.constants}.items():
        if isinstance(value, Tensor) and not value.dtype.is_floating_point:
            integers.add(name)
    return integers


def _is_parameter(node: Node) -> bool:
    """Return whether a constant is a scale or a zero point, read only by quantizing operators."""
    for user in node.users:
        if not base_name(user).startswith(_TAKING_PARAMETERS) or user.args[0] is node:
            return False
    return True


def _read_by(node: Node, names: tuple[str, ...]) -> bool:
    return any(base_name(user).startswith(names) for user in node.users)


def _values_per_byte(node: Node) -> int:
    """Return how many weights a byte of a packed constant holds."""
    names = set()
    for user in node.users:
        names.add(base_name(user))
        names |= {base_name(reader) for reader in user.users}
    # Only its readers show that a weight is packed: its dtype is a byte's.
    if any(name.startswith("embedding_2bit") for name in names):
        return 4
    if names & _BITS or any(name.startswith("embedding_4bit") for name in names):
        return 2
    return 1


class _Reasons:
    """Finds the reason why a quantizer left a constant in floating point."""

    def __init__(
        self,
        program: ExportedProgram,
        quantized: ExportedProgram,
        spec: Any,
        origins: Sequence[Mapping[str, int]],
    ) -> None:
        self._spec = spec
        self._origins = origins[0] if origins else {}
        self._nodes = list(iter_nodes(program))
        inputs = quantized.graph_signature.input_specs
        names = {s.arg.name for s in inputs if s.kind in _CONSTANTS}
        self._constants = find_constants(quantized.graph, names)
        self._quantizes = {
            base_name(node)
            for node in quantized.graph.nodes
            if _has_quantized_weight(node, self._constants) or _is_lookup(node)
        }

    def find(self, constant: Node) -> str:
        reader = next(_readers(constant), None)
        if reader is None:
            return "returned as it is"
        name = control_flow_name(reader)
        if name:
            return f"read in the body of {name}, which no quantizer examines"
        why = self._excluded(reader)
        if why:
            return why
        operator = base_name(reader) or reader.name
        quantizer = self._spec.quantizer
        why = self._spec.explain_float(operator, constant.meta["val"].shape)
        if why:
            return str(why)
        if _is_conversion(reader):
            return "quantized again in every call"
        if _has_quantized_weight(reader, self._constants):
            return f"belongs to a quantized {operator}, of which only the weight is quantized"
        if operator in self._quantizes:
            return f"{quantizer} left this {operator} in floating point, though it quantizes others"
        return f"{quantizer} quantizes no {operator} in this method"

    def _excluded(self, reader: Node) -> str:
        """Return the override that leaves an operator in floating point, in words, or ""."""
        place = self._origins.get(reader.name)
        if place is None or not hasattr(self._spec, "modules"):
            return ""
        node = self._nodes[place]
        if not isinstance(self._spec, MixedQuantize):
            for name in self._spec.modules.keys() & enclosing_modules(node):
                return f"`quantize.modules` leaves {name} in floating point"
            return ""
        if self._spec.scheme_of(node) is not None:
            return ""
        modules, operators = (self._spec.overrides(kind) for kind in OVERRIDES)
        for name in reversed(enclosing_modules(node)):
            if name in modules:
                return f"`quantize.modules` leaves {name} in floating point"
        name = base_name(node)
        if name in operators:
            return f"`quantize.operators` leaves {name} in floating point"
        return "the config leaves its operator in floating point"


def _readers(node: Node) -> Iterator[Node]:
    """Yield the operators that read a value, through views; the deepest in the graph last."""
    for user in node.users:
        if user.op != "call_function":
            continue
        if base_name(user) in _VIEWS and operator_name(user):
            yield from _readers(user)
        else:
            yield user
