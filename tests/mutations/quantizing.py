"""Quantizing a trained network, rightly and wrongly: folded, observed or rounded wrongly.

All of it goes through the pipeline's own `quantize`. A wrong quantization prepares a damaged
module, observes other inputs, or changes a scale or a zero point of the right one.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache, partial
from operator import attrgetter
from random import Random
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node
from torchao.quantization.pt2e.quantize_pt2e import prepare_pt2e

from pipeline.features.quantization import quantize as quantizing
from pipeline.program.inputs import InputSet
from pipeline.program.operators import base_name
from tests.support.configs import parse_config

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
def quantize_rightly(task: Task) -> ExportedProgram:
    calibration = [] if task.dynamic else task.calibration
    return quantizing.quantize(task.export(task.for_quantizing), _spec(task), calibration)


def _damage_graph(
    task: Task, random: Random, damage: Callable[[GraphModule, Random], str]
) -> Wrong:
    """Change the graph of the right quantization."""
    module = copy.deepcopy(quantize_rightly(task).module(check_guards=False))
    what = damage(module, random)
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


def fold_without_mean(task: Task, random: Random) -> Wrong:
    """Fold one batch norm as if its mean were zero."""
    modules = task.for_quantizing.named_modules()
    norms = [name for name, module in modules if isinstance(module, nn.BatchNorm2d)]
    name = random.choice(norms)

    def prepare(module: GraphModule, quantizer: object) -> GraphModule:
        wrong = copy.deepcopy(module)  # the program has the same tensors
        with torch.no_grad():
            wrong.get_submodule(name).running_mean.zero_()
        return prepare_pt2e(wrong, quantizer)

    return _quantize(task, f"{name} folded without its mean", prepare=prepare)


def fold_of_a_shared_convolution(task: Task, random: Random) -> Wrong:
    """Fold the batch norms behind a convolution that they share, as torchao does."""
    return _quantize(task, "one convolution, two batch norms", module=task.module)


def observed_other_data(task: Task, random: Random) -> Wrong:
    """Observe inputs that are not like those of the task."""
    generator = torch.Generator().manual_seed(11)
    shape = task.calibration[0].args[0].shape
    sets = [InputSet((torch.rand(shape, generator=generator),)) for _ in task.calibration]
    return _quantize(task, "observed uniform inputs", sets)


def _swap_zero_points(module: GraphModule, random: Random) -> str:
    """Swap the zero points of two activations that are quantized quite differently."""
    nodes = _find_calls(module, "quantize_per_tensor")
    # Those of dynamic activations are found as values come.
    static = [node for node in nodes if isinstance(node.args[1], float)]
    pairs = [(a, b) for a in static for b in static if abs(a.args[2] - b.args[2]) > 40]
    first, second = random.choice(pairs)
    zero_points = first.args[2], second.args[2]
    for node, zero_point in ((second, zero_points[0]), (first, zero_points[1])):
        for user in (node, *node.users):
            user.update_arg(2, zero_point)
    return f"{first.name} and {second.name}: zero points {zero_points[0]} and {zero_points[1]}"


def _halve_weight_scale(module: GraphModule, random: Random) -> str:
    """Halve the scales of one weight."""
    nodes = _find_calls(module, "dequantize_affine")
    node = random.choice([node for node in nodes if node.args[0].op == "get_attr"])
    scale: Tensor = attrgetter(str(node.args[2].target))(module)
    scale.data.mul_(0.5)
    return f"{node.args[0].target}: scale times 0.5"


def _find_calls(module: GraphModule, name: str) -> list[Node]:
    calls = [node for node in module.graph.nodes if node.op == "call_function"]
    return [node for node in calls if base_name(node) == name]


DAMAGES: dict[str, Callable[[Task, Random], Wrong]] = {
    "fold_without_mean": fold_without_mean,
    "fold_of_a_shared_convolution": fold_of_a_shared_convolution,
    "observed_other_data": observed_other_data,
    "zero_points_swapped": partial(_damage_graph, damage=_swap_zero_points),
    "weight_scale_halved": partial(_damage_graph, damage=_halve_weight_scale),
}
