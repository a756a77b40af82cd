"""Damages of quantized weights: their integers and scales, and of biases.

Each changes a quantized program in place, and returns what it did; None where there is nothing
that it can be done to.
"""

from __future__ import annotations

from functools import partial
from random import Random

import torch
from torch import Tensor
from torch.fx import GraphModule

from pipeline.program.operators import base_name

from .quantized_graph import Weight, find_calls, find_layers, find_weights, pick, pick_pair


def _scale_weight(module: GraphModule, random: Random, factor: float) -> str | None:
    weight = random.choice(find_weights(module))
    weight.set_scale(weight.scale * factor)
    return f"{weight.name}: scale times {factor:g}"


def scales_of_two_layers_swapped(module: GraphModule, random: Random) -> str | None:
    pair = pick_pair(find_weights(module), random, lambda weight: weight.scale.shape)
    if pair is None:
        return None
    one, other = pair
    scales = one.scale.clone(), other.scale.clone()
    one.set_scale(scales[1])
    other.set_scale(scales[0])
    return f"{one.name} and {other.name}: scales swapped"


def channel_scales_permuted(module: GraphModule, random: Random) -> str | None:
    weight = pick(random, (each for each in find_weights(module) if each.scale.numel() > 1))
    if weight is None:
        return None
    weight.set_scale(weight.scale.roll(1, 0))
    return f"{weight.name}: each channel has the scale of the one before"


def one_channel_scale_for_all(module: GraphModule, random: Random) -> str | None:
    weight = pick(random, (each for each in find_weights(module) if each.scale.numel() > 1))
    if weight is None:
        return None
    weight.set_scale(weight.scale.flatten()[0].expand_as(weight.scale))
    return f"{weight.name}: all channels have the scale of the first"


def wrong_axis(module: GraphModule, random: Random) -> str | None:
    """Have the scales of rows stand for columns."""
    weights = (each for each in find_weights(module) if _is_square(each.values))
    weight = pick(random, (w for w in weights if base_name(w.nodes[0]).endswith("per_channel")))
    if weight is None:
        return None
    for node in weight.nodes:
        node.update_arg(3, 1)
    return f"{weight.name}: scales along axis 1"


def weights_of_another_layer(module: GraphModule, random: Random) -> str | None:
    pair = pick_pair(find_weights(module), random, lambda weight: weight.values.shape)
    if pair is None:
        return None
    one, other = pair
    one.set_values(other.values)
    return f"{one.name}: integers of {other.name}"


def weights_wrapped(module: GraphModule, random: Random) -> str | None:
    """Round to half the scale, and have what is beyond the range wrap, as a cast does."""
    weight = random.choice(find_weights(module))
    least = weight.values.min().item()
    bits = 4 if least >= -8 else 8
    weight.set_values(_wrap(weight.values.int() * 2, bits))
    weight.set_scale(weight.scale / 2)
    return f"{weight.name}: half the scale, wrapped to {bits} bits"


def weights_as_unsigned(module: GraphModule, random: Random) -> str | None:
    """Take integers without a sign for integers with one."""
    weight = random.choice(find_weights(module))
    bits = 4 if weight.values.min().item() >= -8 else 8
    weight.set_values(_wrap(weight.values.int() + 2 ** (bits - 1), bits))
    return f"{weight.name}: sign bits flipped"


def weights_one_sided(module: GraphModule, random: Random) -> str | None:
    weight = random.choice(find_weights(module))
    weight.set_values(weight.values.clamp(min=0))
    return f"{weight.name}: range from 0"


def weights_cut_to_four_bits(module: GraphModule, random: Random) -> str | None:
    weight = pick(random, (each for each in find_weights(module) if each.values.min() < -8))
    if weight is None:
        return None
    weight.set_values(weight.values.clamp(-8, 7))
    return f"{weight.name}: range -8 to 7, of a scale for -127 to 127"


def low_bits_dropped(module: GraphModule, random: Random) -> str | None:
    """Keep four bits, without rounding, in all layers."""
    weights = [each for each in find_weights(module) if each.values.min() < -8]
    for weight in weights:
        weight.set_values((weight.values.int() >> 4) << 4)
    return f"{len(weights)} weights: low four bits dropped" if weights else None


def weight_in_another_layout(module: GraphModule, random: Random) -> str | None:
    """Read a convolution's weight as if its channels came last, or a linear one as transposed."""
    weight = pick(random, filter(_can_be_laid_out, find_weights(module)))
    if weight is None:
        return None
    values = weight.values
    moved = values.permute(0, 2, 3, 1) if values.dim() == 4 and values.shape[1] > 1 else values.mT
    weight.set_values(moved.reshape(values.shape).clone())
    return f"{weight.name}: read in another layout"


def channels_shifted(module: GraphModule, random: Random) -> str | None:
    """Have each output channel compute with the weight and scale of the one before; biases stay."""
    weight = random.choice(find_weights(module))
    weight.set_values(weight.values.roll(1, 0))
    if weight.scale.dim():
        weight.set_scale(weight.scale.roll(1, 0))
    return f"{weight.name}: channels moved by one"


def gates_reordered(module: GraphModule, random: Random) -> str | None:
    """Store the gates of an LSTM as i, g, f, o, and read them as i, f, g, o."""
    weight = pick(random, (w for w in find_weights(module) if w.values.shape == (96, 48)))
    if weight is None or not find_calls(module, "tanh"):
        return None
    for tensor, put in ((weight.values, weight.set_values), (weight.scale, weight.set_scale)):
        i, f, g, o = tensor.chunk(4)
        put(torch.cat([i, g, f, o]))
    return f"{weight.name}: gates in another order"


def weight_zero_point(module: GraphModule, random: Random) -> str | None:
    """Give weights that are symmetric a zero point."""
    weight = random.choice(find_weights(module))
    if base_name(weight.nodes[0]) == "dequantize_affine":
        return None
    weight.set_zero_point(24)
    return f"{weight.name}: zero point 24"


def bias_dropped(module: GraphModule, random: Random) -> str | None:
    layer = random.choice(find_layers(module))
    layer.bias.data.zero_()
    return f"{layer.node.name}: bias dropped"


def biases_scaled(module: GraphModule, random: Random) -> str | None:
    """Have biases keep four times the scale that they were stored with."""
    layers = find_layers(module)
    for bias in {id(layer.bias): layer.bias for layer in layers}.values():
        bias.data.mul_(4)
    return f"{len(layers)} layers: biases times 4"


def bias_of_another_layer(module: GraphModule, random: Random) -> str | None:
    pair = pick_pair(find_layers(module), random, lambda layer: layer.bias.shape)
    if pair is None or pair[0].bias is pair[1].bias:
        return None
    pair[0].bias.data.copy_(pair[1].bias)
    return f"{pair[0].node.name}: bias of {pair[1].node.name}"


def bias_without_the_scale_of_inputs(module: GraphModule, random: Random) -> str | None:
    """Store a bias by the scale of the weight alone, and read it by both."""
    layer = random.choice(find_layers(module))
    scale = layer.input.args[1]
    if not isinstance(scale, float):
        return None
    layer.bias.data.mul_(scale)
    return f"{layer.node.name}: bias times the scale of its inputs, {scale:.3g}"


def _wrap(values: Tensor, bits: int) -> Tensor:
    half = 2 ** (bits - 1)
    return ((values + half) % (2 * half) - half).to(torch.int8)


def _is_square(values: Tensor) -> bool:
    return values.shape[0] == values.shape[1]


def _can_be_laid_out(weight: Weight) -> bool:
    values = weight.values
    return values.shape[-1] > 1 and (values.dim() == 4 or _is_square(values))


IN_WEIGHTS = {
    "weight_scale_doubled": partial(_scale_weight, factor=2.0),
    "weight_scale_halved": partial(_scale_weight, factor=0.5),
    "weight_scale_tenfold": partial(_scale_weight, factor=10.0),
    **{
        function.__name__: function
        for function in (
            scales_of_two_layers_swapped,
            channel_scales_permuted,
            one_channel_scale_for_all,
            wrong_axis,
            weights_of_another_layer,
            weights_wrapped,
            weights_as_unsigned,
            weights_one_sided,
            weights_cut_to_four_bits,
            low_bits_dropped,
            weight_in_another_layout,
            channels_shifted,
            gates_reordered,
            weight_zero_point,
        )
    },
}
IN_BIASES = {
    function.__name__: function
    for function in (
        bias_dropped,
        biases_scaled,
        bias_of_another_layer,
        bias_without_the_scale_of_inputs,
    )
}
