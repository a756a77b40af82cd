"""Damages of quantized activations: their scales, zero points and ranges, and what is between.

Each changes a quantized program in place, and returns what it did; None where there is nothing
that it can be done to.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random

import torch
from torch.fx import GraphModule

from .quantized_graph import Activation, find_activations, find_calls, find_layers

_Matches = Callable[[Activation], bool]


def _scale_activation(module: GraphModule, random: Random, factor: float) -> str | None:
    activation = _pick(module, random)
    if activation is None:
        return None
    activation.set(activation.params[0] * factor)
    return f"{activation.quantize.name}: scale times {factor:g}"


def params_of_two_activations_swapped(module: GraphModule, random: Random) -> str | None:
    pair = _pick_pair(module, random)
    if pair is None:
        return None
    params = [activation.params for activation in pair]
    pair[0].set(*params[1])
    pair[1].set(*params[0])
    return f"{pair[0].quantize.name} and {pair[1].quantize.name}: scales and zero points swapped"


def zero_points_swapped(module: GraphModule, random: Random) -> str | None:
    pair = _pick_pair(module, random)
    if pair is None:
        return None
    (one_scale, one, *_), (other_scale, other, *_) = (activation.params for activation in pair)
    pair[0].set(one_scale, other)
    pair[1].set(other_scale, one)
    return f"{pair[0].quantize.name} and {pair[1].quantize.name}: zero points {one} and {other}"


def zero_point_shifted(module: GraphModule, random: Random) -> str | None:
    """Cut off a part of the range."""
    return _move_zero_point(module, random, lambda zero: zero + 64 if zero < 0 else zero - 64)


def zero_point_negated(module: GraphModule, random: Random) -> str | None:
    return _move_zero_point(module, random, lambda zero: min(-zero, 127))


def asymmetric_as_symmetric(module: GraphModule, random: Random) -> str | None:
    return _move_zero_point(module, random, lambda zero: 0)


def _move_zero_point(
    module: GraphModule, random: Random, change: Callable[[int], int]
) -> str | None:
    activation = _pick(module, random, lambda each: abs(each.params[1]) > 16)
    if activation is None:
        return None
    scale, zero, *_ = activation.params
    activation.set(scale, change(zero))
    return f"{activation.quantize.name}: zero point {zero} becomes {activation.params[1]}"


def zero_point_lost_on_reading(module: GraphModule, random: Random) -> str | None:
    """Subtract no zero point where a tensor is read."""
    activation = _pick(module, random, lambda each: abs(each.params[1]) > 16)
    if activation is None:
        return None
    activation.set_dequantized(activation.params[0], 0)
    return f"{activation.quantize.name}: read without its zero point"


def scale_of_another_on_reading(module: GraphModule, random: Random) -> str | None:
    """Read a tensor by the scale and zero point of another, as where no value is requantized."""
    pair = _pick_pair(module, random)
    if pair is None:
        return None
    pair[0].set_dequantized(*pair[1].params)
    return f"{pair[0].quantize.name}: read as {pair[1].quantize.name} is"


def range_of_four_bits(module: GraphModule, random: Random) -> str | None:
    activation = _pick(module, random)
    if activation is None:
        return None
    scale, zero, *_ = activation.params
    activation.set(scale, zero, max(-128, zero - 8), min(127, zero + 7))
    return f"{activation.quantize.name}: 16 steps around {zero}, of a scale for 256"


def one_sided_range(module: GraphModule, random: Random) -> str | None:
    """Cut off one side of a range."""
    activation = _pick(module, random, lambda each: abs(each.params[1]) < 100)
    if activation is None:
        return None
    scale, zero, *_ = activation.params
    activation.set(scale, zero, zero, 127)
    return f"{activation.quantize.name}: range from {zero}, which is zero"


def requantize_missing(module: GraphModule, random: Random) -> str | None:
    """Have the output of a layer keep the scale and zero point of its input."""
    for layer in random.sample(layers := find_layers(module), len(layers)):
        outputs = [a for a in find_activations(module) if layer.node in _near(a)]
        if outputs and isinstance(layer.input.args[1], float):
            outputs[0].set(*layer.input.args[1:5])
            return f"{outputs[0].quantize.name}: quantized as the input of {layer.node.name}"
    return None


def padding_of_integer_zeros(module: GraphModule, random: Random) -> str | None:
    """Pad with integers of 0, which stand for another value than zero."""
    layers = [x for x in find_layers(module) if len(x.node.args) > 4 and any(x.node.args[4])]
    layers = [x for x in layers if x.input.args[2]]
    if not layers:
        return None
    layer = random.choice(layers)
    scale, zero = layer.input.args[1:3]
    size = layer.node.args[4][0]
    value = -zero * scale
    with module.graph.inserting_before(layer.node):
        padded = module.graph.call_function(
            torch.ops.aten.constant_pad_nd.default, (layer.input, [size] * 4, value)
        )
    layer.node.update_arg(0, padded)
    layer.node.update_arg(4, [0, 0])
    return f"{layer.node.name}: padded with {value:.3g}"


def activation_dropped(module: GraphModule, random: Random) -> str | None:
    calls = find_calls(module, "relu", "relu6")
    if not calls:
        return None
    call = random.choice(calls)
    call.replace_all_uses_with(call.args[0])
    module.graph.erase_node(call)
    return f"{call.name}: dropped"


def dynamic_range_of_four_bits(module: GraphModule, random: Random) -> str | None:
    """Find ranges for 8 bits, and cut off what is beyond 4."""
    nodes = find_calls(module, "quantize_per_tensor", "dequantize_per_tensor")
    dynamic = [node for node in nodes if not isinstance(node.args[1], float)]
    for node in dynamic:
        node.update_arg(3, -8)
        node.update_arg(4, 7)
    return f"{len(dynamic)} nodes: range -8 to 7" if dynamic else None


def _near(activation: Activation) -> list[object]:
    """Return what is quantized, and what that was made of, as a layer before its ReLU."""
    value = activation.quantize.args[0]
    return [value, *value.all_input_nodes]


def _pick(
    module: GraphModule, random: Random, matches: _Matches = lambda activation: True
) -> Activation | None:
    found = list(filter(matches, find_activations(module)))
    return random.choice(found) if found else None


def _pick_pair(module: GraphModule, random: Random) -> tuple[Activation, Activation] | None:
    """Return two that are quantized quite differently."""
    found = find_activations(module)
    pairs = [(a, b) for a in found for b in found if abs(a.params[1] - b.params[1]) > 40]
    return random.choice(pairs) if pairs else None


IN_ACTIVATIONS = {
    "activation_scale_coarse": partial(_scale_activation, factor=8.0),
    "activation_scale_small": partial(_scale_activation, factor=0.25),
    "activation_scale_halved": partial(_scale_activation, factor=0.5),
    **{
        function.__name__: function
        for function in (
            params_of_two_activations_swapped,
            zero_points_swapped,
            zero_point_shifted,
            zero_point_negated,
            asymmetric_as_symmetric,
            zero_point_lost_on_reading,
            scale_of_another_on_reading,
            range_of_four_bits,
            one_sided_range,
            requantize_missing,
            padding_of_integer_zeros,
            activation_dropped,
            dynamic_range_of_four_bits,
        )
    },
}
