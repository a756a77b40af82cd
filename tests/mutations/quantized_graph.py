"""What is quantized in a program that was quantized: its weights, activations and biases.

A damage changes these in the graph of a quantized program, before it is exported again and lowered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from random import Random
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from pipeline.program.operators import base_name

_Candidate = TypeVar("_Candidate")
_LAYERS = ("conv1d", "conv2d", "linear")


@dataclass(frozen=True)
class Weight:
    """A quantized weight. One that several calls read is dequantized before each of them.

    Attributes:
        nodes: those that dequantize it.
        place: of the scale among their arguments; the zero point comes next.
    """

    module: GraphModule
    name: str
    nodes: Sequence[Node]
    place: int

    @property
    def values(self) -> Tensor:
        """The integers."""
        return attrgetter(self.name)(self.module)

    @property
    def scale(self) -> Tensor:
        """The scales, by channel or group, or the only one."""
        scale = self.nodes[0].args[self.place]
        return _tensor(scale) if isinstance(scale, Node) else torch.tensor(scale)

    def set_values(self, values: Tensor) -> None:
        self.values.data.copy_(values)

    def set_scale(self, scale: Tensor) -> None:
        self._set(self.place, scale)

    def set_zero_point(self, value: int) -> None:
        node = self.nodes[0].args[self.place + 1]
        old = _tensor(node) if isinstance(node, Node) else torch.tensor(0)
        self._set(self.place + 1, torch.full_like(old, value))

    def _set(self, place: int, value: Tensor) -> None:
        old = self.nodes[0].args[place]
        if isinstance(old, Node):
            _tensor(old).data.copy_(value)
            return
        for node in self.nodes:
            node.update_arg(place, value.item())


@dataclass(frozen=True)
class Activation:
    """A tensor that is quantized with a scale that observers found, and dequantized right after."""

    quantize: Node

    @property
    def params(self) -> tuple[float, int, int, int]:
        """The scale, the zero point, and the range of the integers."""
        return self.quantize.args[1:5]

    @property
    def dequantized(self) -> list[Node]:
        return [user for user in self.quantize.users if _is_dequantize(user)]

    def set(self, *params: Any) -> None:
        """Change the leading ones of the parameters, on both sides."""
        for node in (self.quantize, *self.dequantized):
            _set_leading(node, params)

    def set_dequantized(self, *params: Any) -> None:
        for node in self.dequantized:
            _set_leading(node, params)


@dataclass(frozen=True)
class Layer:
    """A convolution or a linear layer, and what it reads."""

    module: GraphModule
    node: Node

    @property
    def input(self) -> Node:
        return self.node.args[0]

    @property
    def bias(self) -> Tensor:
        return _tensor(self.node.args[2])


def find_weights(module: GraphModule) -> list[Weight]:
    """Return the weights of layers, and no scalars, which are quantized as constants too."""
    nodes: dict[str, list[Node]] = {}
    for node in _calls(module, _is_dequantize):
        source = node.args[0]
        if isinstance(source, Node) and source.op == "get_attr":
            nodes.setdefault(str(source.target), []).append(node)
    affine = {name: base_name(found[0]) == "dequantize_affine" for name, found in nodes.items()}
    weights = [Weight(module, name, found, 1 + affine[name]) for name, found in nodes.items()]
    return [weight for weight in weights if weight.values.dim() > 1]


def find_activations(module: GraphModule) -> list[Activation]:
    """Return those with scales that observers found, and none that are found as values come."""
    nodes = _calls(module, lambda node: base_name(node) == "quantize_per_tensor")
    return [Activation(node) for node in nodes if isinstance(node.args[1], float)]


def find_layers(module: GraphModule) -> list[Layer]:
    return [Layer(module, node) for node in _calls(module, lambda n: base_name(n) in _LAYERS)]


def find_calls(module: GraphModule, *names: str) -> list[Node]:
    return _calls(module, lambda node: base_name(node) in names)


def pick(random: Random, candidates: Iterable[_Candidate]) -> _Candidate | None:
    listed = list(candidates)
    return random.choice(listed) if listed else None


def pick_pair(
    candidates: list[_Candidate], random: Random, kind: Callable[[_Candidate], object]
) -> tuple[_Candidate, _Candidate] | None:
    """Return two that are of one kind."""
    pairs = [(a, b) for a in candidates for b in candidates if a is not b and kind(a) == kind(b)]
    return random.choice(pairs) if pairs else None


def _calls(module: GraphModule, matches: Callable[[Node], bool]) -> list[Node]:
    return [node for node in module.graph.nodes if node.op == "call_function" and matches(node)]


def _is_dequantize(node: Node) -> bool:
    return base_name(node).startswith("dequantize_")


def _tensor(node: Node) -> Tensor:
    return attrgetter(str(node.target))(node.graph.owning_module)


def _set_leading(node: Node, params: Sequence[Any]) -> None:
    for place, value in enumerate(params, 1):
        node.update_arg(place, value)
