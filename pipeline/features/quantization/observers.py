"""Watches what the observers of a prepared module see, to report meaningless ranges.

A range that comes from one single value or from infinities, or that cuts off much of what was seen,
gives a scale that fits no real input.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from pipeline.features.quantization.constant_nodes import find_constants
from pipeline.program.module_paths import innermost_module
from pipeline.program.operators import operator_name

MOST = 20  # maximum number of remarks kept
# How far values may lie outside a range, as a share of its width. Ranges with the least error cut
# off the rare outliers of a distribution, by an eighth for thousands of normally distributed
# values.
_OUTSIDE = 0.5


@dataclass
class _ValueRange:
    """The range of finite values that an observer has seen, and the count of nonfinite ones."""

    node: Node
    module: torch.nn.Module
    least: float = math.inf
    greatest: float = -math.inf
    nonfinite: int = 0

    def add(self, value: Tensor) -> None:
        least, greatest = _ends(value)
        if not (math.isfinite(least) and math.isfinite(greatest)):
            finite = value[value.isfinite()]
            self.nonfinite += value.numel() - finite.numel()
            if not finite.numel():
                return
            least, greatest = _ends(finite)
        self.least = min(self.least, least)
        self.greatest = max(self.greatest, greatest)


def _ends(value: Tensor) -> tuple[float, float]:
    least, greatest = value.aminmax()
    return float(least), float(greatest)


class ObserverRanges:
    """Records the ranges that observers see while its `with` block lasts."""

    def __init__(self, prepared: GraphModule) -> None:
        self._constants = find_constants(prepared.graph)
        self._ranges: dict[str, _ValueRange] = {}
        for node in prepared.graph.find_nodes(op="call_module"):
            module = prepared.get_submodule(str(node.target))
            if hasattr(module, "calculate_qparams") and node.args:
                self._ranges.setdefault(
                    str(node.target),
                    _ValueRange(node.args[0], module),
                )
        self._hooks: list[Any] = []

    def __enter__(self) -> ObserverRanges:
        for values in self._ranges.values():
            self._hooks.append(
                values.module.register_forward_pre_hook(_note_into(values))
            )
        return self

    def __exit__(self, *error: object) -> None:
        for hook in self._hooks:
            hook.remove()

    def first_nonfinite(self) -> str:
        """Return the name of the first value that was infinite or NaN, for a message, or ""."""
        first = next(
            (values for values in self._ranges.values() if values.nonfinite),
            None,
        )
        if first:
            return describe_value(first.node)
        return ""

    def to_json(self) -> dict[str, Any]:
        """Return the number of observers, and remarks on some of them, as JSON."""
        remarks: list[dict[str, Any]] = []
        for values in self._ranges.values():
            remarks += _remarks(values, values.node in self._constants)
        return {
            "count": len(self._ranges),
            "remarks": remarks[:MOST],
            "remarked": len(remarks),
        }


def _note_into(values: _ValueRange) -> Any:
    def note(module: torch.nn.Module, args: tuple[Any, ...]) -> None:
        value = args[0]
        if (
            isinstance(value, Tensor)
            and value.dtype.is_floating_point
            and value.numel()
        ):
            values.add(value.detach())

    return note


def describe_value(node: Node) -> str:
    """Return the name of a value for messages: `aten.relu.default in module head`, or `input x`."""
    if node.op == "placeholder":
        return f"input {node.name}"
    if node.op == "get_attr":
        return f"weight {node.target}"
    name = operator_name(node) or node.name
    module = innermost_module(node)
    if module:
        return f"{name} in module {module}"
    return name


def _remarks(values: _ValueRange, constant: bool) -> Iterator[dict[str, Any]]:
    facts = {
        "value": describe_value(values.node),
        "module": innermost_module(values.node),
        "seen": [_figure(values.least), _figure(values.greatest)],
        "range": None,
        "nonfinite": values.nonfinite,
    }
    if values.nonfinite:
        yield {"kind": "not finite", **facts}
    if math.isinf(values.least) or _is_dynamic(values.module):
        return
    if values.least == values.greatest:
        if not constant:  # a constant has no other values
            yield {"kind": "one value", **facts}
        return
    limits = _quantized_range(values.module)
    if limits is None:
        return
    least, greatest = limits
    outside = max(least - values.least, values.greatest - greatest)
    if outside > _OUTSIDE * (greatest - least):
        yield {"kind": "cut off", **facts, "range": [_figure(least), _figure(greatest)]}


def _is_dynamic(module: torch.nn.Module) -> bool:
    """Return whether a module chooses no range, because its value is quantized dynamically."""
    return bool(getattr(module, "is_dynamic", False))


def _quantized_range(module: Any) -> tuple[float, float] | None:
    """Return the least and greatest value of a per-tensor range, or None for any other range."""
    try:
        scale, zero_point = module.calculate_qparams()
        least = int(module.quant_min)
        greatest = int(module.quant_max)
    except (AttributeError, TypeError, ValueError, RuntimeError, NotImplementedError):
        return None  # a plugin's observer
    if scale.numel() != 1:
        return None
    step = float(scale)
    zero = int(zero_point)
    return (least - zero) * step, (greatest - zero) * step


def _figure(value: float) -> float | None:
    if math.isfinite(value):
        return float(f"{value:.4g}")
    return None
