"""Watches what the observers of a prepared module see, to tell of ranges that mean nothing.

A range that comes of one single value, of infinities, or that cuts off much of what was seen, gives
a scale that fits no real input.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from pipeline.program.module_paths import innermost_module
from pipeline.program.operators import operator_name

MOST = 20  # remarks that are kept
# The share of a range's width by which values may lie outside. Ranges with the least error cut off
# the rare outliers of a distribution, by an eighth for thousands of normal values.
_OUTSIDE = 0.5


@dataclass
class _Seen:
    """The finite values that an observer has seen, from least to greatest, and the others."""

    node: Node
    module: torch.nn.Module
    least: float = math.inf
    greatest: float = -math.inf
    nonfinite: int = 0

    def add(self, value: Tensor) -> None:
        least, greatest = (float(end) for end in value.aminmax())
        if not (math.isfinite(least) and math.isfinite(greatest)):
            finite = value[value.isfinite()]
            self.nonfinite += value.numel() - finite.numel()
            if not finite.numel():
                return
            least, greatest = (float(end) for end in finite.aminmax())
        self.least, self.greatest = min(self.least, least), max(self.greatest, greatest)


class ObserverWatch:
    """Notes the ranges that observers see, while its `with` block lasts."""

    def __init__(self, prepared: GraphModule) -> None:
        self._seen: dict[str, _Seen] = {}
        for node in prepared.graph.find_nodes(op="call_module"):
            module = prepared.get_submodule(str(node.target))
            if hasattr(module, "calculate_qparams") and node.args:
                self._seen.setdefault(str(node.target), _Seen(node.args[0], module))
        self._hooks: list[Any] = []

    def __enter__(self) -> ObserverWatch:
        for seen in self._seen.values():
            self._hooks.append(seen.module.register_forward_pre_hook(_note_into(seen)))
        return self

    def __exit__(self, *error: object) -> None:
        for hook in self._hooks:
            hook.remove()

    def first_nonfinite(self) -> str:
        """Return the first value that was infinite or NaN, for a message; "" without one."""
        found = next((seen for seen in self._seen.values() if seen.nonfinite), None)
        return describe_value(found.node) if found else ""

    def to_json(self) -> dict[str, Any]:
        """Return how many observers there are, and remarks about some, as JSON."""
        remarks = [remark for seen in self._seen.values() for remark in _remarks(seen)]
        return {"count": len(self._seen), "remarks": remarks[:MOST], "remarked": len(remarks)}


def _note_into(seen: _Seen) -> Any:
    def note(module: torch.nn.Module, args: tuple[Any, ...]) -> None:
        value = args[0]
        if isinstance(value, Tensor) and value.dtype.is_floating_point and value.numel():
            seen.add(value.detach())

    return note


def describe_value(node: Node) -> str:
    """Return what a message calls a value: `aten.relu.default in module head`, or `input x`."""
    if node.op == "placeholder":
        return f"input {node.name}"
    if node.op == "get_attr":
        return f"weight {node.target}"
    module = innermost_module(node)
    return f"{operator_name(node) or node.name}{f' in module {module}' if module else ''}"


def _remarks(seen: _Seen) -> Iterator[dict[str, Any]]:
    found = {
        "value": describe_value(seen.node),
        "module": innermost_module(seen.node),
        "seen": [_figure(seen.least), _figure(seen.greatest)],
        "range": None,
        "nonfinite": seen.nonfinite,
    }
    if seen.nonfinite:
        yield {"kind": "not finite", **found}
    if math.isinf(seen.least) or _is_dynamic(seen.module):
        return
    if seen.least == seen.greatest:
        # Scalars that became tensors have one value by nature.
        if seen.node.op != "get_attr" or _numel(seen.node) != 1:
            yield {"kind": "one value", **found}
        return
    if (limits := _quantized_range(seen.module)) is None:
        return
    least, greatest = limits
    outside = max(least - seen.least, seen.greatest - greatest)
    if outside > _OUTSIDE * (greatest - least):
        yield {"kind": "cut off", **found, "range": [_figure(least), _figure(greatest)]}


def _is_dynamic(module: torch.nn.Module) -> bool:
    """Tell whether a module chooses no range: it marks a value that is quantized as it comes."""
    return bool(getattr(module, "is_dynamic", False))


def _numel(node: Node) -> int:
    value = node.meta.get("val")
    return value.numel() if isinstance(value, Tensor) else 0


def _quantized_range(module: Any) -> tuple[float, float] | None:
    """Return the least and greatest value that a per-tensor range represents; None for others."""
    try:
        scale, zero_point = module.calculate_qparams()
        least, greatest = int(module.quant_min), int(module.quant_max)
    except (AttributeError, TypeError, ValueError, RuntimeError, NotImplementedError):
        return None  # observers of plugins
    if scale.numel() != 1:
        return None
    step, zero = float(scale), int(zero_point)
    return (least - zero) * step, (greatest - zero) * step


def _figure(value: float) -> float | None:
    return float(f"{value:.4g}") if math.isfinite(value) else None
