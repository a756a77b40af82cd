"""Quantizing a trained network, rightly and wrongly: folded, observed or copied wrongly.

All of it goes through the pipeline's own `quantize`. A wrong quantization prepares a damaged
module, observes other inputs, or takes a part from the quantization of another network.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache, partial
from random import Random
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.fx import GraphModule
from torchao.quantization.pt2e.quantize_pt2e import prepare_pt2e

from pipeline.compile import quantize as quantizing
from pipeline.program.inputs import InputSet
from tests.support.configs import parse_config

from .quantized_graph import find_activations, find_weights
from .trained import Task


class Wrong(NamedTuple):
    """A program that was quantized wrongly.

    Attributes:
        what: was done to it.
        departs: how the program with observers, which rounds nothing yet, departs from the float
            one; "" where it agrees, or nobody compared it.
    """

    program: ExportedProgram
    what: str
    departs: str = ""


@cache
def quantize_rightly(task: Task, trained: bool = True) -> ExportedProgram:
    module = task.for_quantizing if trained else task.untrained
    calibration = [] if task.dynamic else task.calibration
    return quantizing.quantize(task.export(module), _spec(task), calibration)


def damage_graph(
    task: Task, random: Random, damage: Callable[[GraphModule, Random], str | None]
) -> Wrong | None:
    """Change the graph of the right quantization."""
    module = copy.deepcopy(quantize_rightly(task).module(check_guards=False))
    what = damage(module, random)
    if what is None:
        return None
    module.recompile()
    return Wrong(task.export(module), what)


def _spec(task: Task) -> Any:
    methods = {"f": {"partitioners": [], "quantize": task.options}}
    return parse_config("p", {"model": "m", "methods": methods}, "p.yaml").methods["f"].quantize


def _quantize(
    task: Task,
    what: str,
    observed: list[InputSet] | None = None,
    prepare: Callable[..., GraphModule] = prepare_pt2e,
    module: nn.Module | None = None,
) -> Wrong:
    """Quantize as the pipeline does, but for what a mistake would change."""
    notes = quantizing.QuantizationNotes()
    program = task.export(module or task.for_quantizing)
    with mock.patch.object(quantizing, "prepare_pt2e", prepare):
        quantized = quantizing.quantize(
            program, _spec(task), observed or task.calibration, notes=notes
        )
    prepared = notes.prepared
    if prepared is None or prepared["agrees"] is not False:
        return Wrong(quantized, what)
    worst = prepared["outputs"][0]["sqnr_db"]
    return Wrong(quantized, what, f"the prepared program is at {worst} dB")


# What a mistake in folding makes of a batch norm.


def _without_mean(norm: nn.BatchNorm2d) -> None:
    norm.running_mean.zero_()


def _without_weight(norm: nn.BatchNorm2d) -> None:
    norm.weight.fill_(1)


def _without_bias(norm: nn.BatchNorm2d) -> None:
    norm.bias.zero_()


def _by_variance(norm: nn.BatchNorm2d) -> None:
    """Divide by the variance, and not by its root."""
    norm.running_var.square_()


def _multiplied(norm: nn.BatchNorm2d) -> None:
    """Multiply by the deviation, and do not divide by it."""
    norm.running_var.reciprocal_()


def _not_at_all(norm: nn.BatchNorm2d) -> None:
    for tensor, value in zip(_tensors(norm), (1, 0, 0, 1), strict=True):
        tensor.fill_(value)


def _channels_moved(norm: nn.BatchNorm2d) -> None:
    for tensor in _tensors(norm):
        tensor.copy_(tensor.roll(1))


def _tensors(norm: nn.BatchNorm2d) -> tuple[Tensor, ...]:
    return norm.weight, norm.bias, norm.running_mean, norm.running_var


def _fold(task: Task, random: Random, change: Callable[[nn.BatchNorm2d], None]) -> Wrong | None:
    """Fold one batch norm wrongly."""
    modules = task.for_quantizing.named_modules()
    norms = [name for name, module in modules if isinstance(module, nn.BatchNorm2d)]
    if not norms:
        return None
    name = random.choice(norms)

    def prepare(module: GraphModule, quantizer: object) -> GraphModule:
        wrong = copy.deepcopy(module)  # the program has the same tensors
        with torch.no_grad():
            change(wrong.get_submodule(name))
        return prepare_pt2e(wrong, quantizer)

    return _quantize(task, f"{name} folded {change.__name__[1:]}", prepare=prepare)


def fold_of_a_shared_convolution(task: Task, random: Random) -> Wrong | None:
    """Fold the batch norms behind a convolution that they share, as torchao does."""
    if not task.unshare:
        return None
    return _quantize(task, "one convolution, two batch norms", module=task.module)


# What observers see instead of calibration inputs.


def _observe(
    task: Task, random: Random, change: Callable[[Tensor], Tensor], only_images: bool = False
) -> Wrong | None:
    sets = task.calibration
    if task.dynamic or (only_images and sets[0].args[0].dim() != 4):
        return None
    observed = [InputSet((change(inputs.args[0]),)) for inputs in sets]
    return _quantize(task, f"observed inputs {change.__name__.strip('_')}", observed)


def _draw_uniform(x: Tensor) -> Tensor:
    return torch.rand(x.shape, generator=torch.Generator().manual_seed(11))


def _read_as_channels_last(x: Tensor) -> Tensor:
    return x.permute(0, 2, 3, 1).reshape(x.shape)


def _take_one_value(x: Tensor) -> Tensor:
    return x.mean().expand_as(x).clone()


def _read_as_pixels(x: Tensor) -> Tensor:
    return (x * 64 + 128).clamp(0, 255)


def _only_silence(x: Tensor) -> Tensor:
    return x * 0.05


_INPUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "observed_zeros": torch.zeros_like,
    "observed_one_value": _take_one_value,
    "observed_other_data": _draw_uniform,
    "observed_quiet_inputs": _only_silence,
    "observed_unnormed_inputs": _read_as_pixels,
    "observed_negated_inputs": torch.neg,
}


def _feed_one_observer(task: Task, random: Random, value: float) -> Wrong | None:
    """Have one observer see one value, and the others what they should."""
    if task.dynamic:
        return None
    chosen = ""

    def prepare(module: GraphModule, quantizer: object) -> GraphModule:
        nonlocal chosen
        prepared = prepare_pt2e(module, quantizer)
        nodes = (node for node in prepared.graph.nodes if node.op == "call_module")
        chosen = random.choice([n.target for n in nodes if n.args[0].op == "call_function"])
        observer = prepared.get_submodule(chosen)
        observe = observer.forward

        def forward(x: Tensor) -> Tensor:
            observe(torch.full_like(x, value))
            return x

        observer.forward = forward
        return prepared

    wrong = _quantize(task, "", prepare=prepare)
    return wrong._replace(what=f"{chosen} saw {value:g} alone")


# What is taken from the quantization of the network as it was before training.


def activations_of_an_early_checkpoint(task: Task, random: Random) -> Wrong | None:
    if task.dynamic or task.unshare:
        return None
    early = quantize_rightly(task, trained=False).module(check_guards=False)

    def take(module: GraphModule, random: Random) -> str:
        pairs = zip(find_activations(module), find_activations(early), strict=True)
        for activation, other in pairs:
            activation.set(*other.params)
        return "scales and zero points of the network before training"

    return damage_graph(task, random, take)


def layer_of_an_early_checkpoint(task: Task, random: Random) -> Wrong | None:
    if task.unshare:
        return None
    early = quantize_rightly(task, trained=False).module(check_guards=False)

    def take(module: GraphModule, random: Random) -> str:
        pairs = zip(find_weights(module), find_weights(early), strict=True)
        weight, other = random.choice(list(pairs))
        weight.set_values(other.values)
        weight.set_scale(other.scale)
        return f"{weight.name} of the network before training"

    return damage_graph(task, random, take)


IN_QUANTIZING: dict[str, Callable[[Task, Random], Wrong | None]] = {
    "fold_without_mean": partial(_fold, change=_without_mean),
    "fold_without_weight": partial(_fold, change=_without_weight),
    "fold_without_bias": partial(_fold, change=_without_bias),
    "fold_by_variance": partial(_fold, change=_by_variance),
    "fold_multiplied": partial(_fold, change=_multiplied),
    "fold_left_out": partial(_fold, change=_not_at_all),
    "fold_of_moved_channels": partial(_fold, change=_channels_moved),
    **{name: partial(_observe, change=change) for name, change in _INPUTS.items()},
    "observed_channels_last": partial(_observe, change=_read_as_channels_last, only_images=True),
    "one_observer_saw_zero": partial(_feed_one_observer, value=0.0),
    "one_observer_saw_one_value": partial(_feed_one_observer, value=0.25),
    **{
        function.__name__: function
        for function in (
            fold_of_a_shared_convolution,
            activations_of_an_early_checkpoint,
            layer_of_an_early_checkpoint,
        )
    },
}
