"""What users are told about a quantization that went wrong.

Small trained networks are quantized by the pipeline's `quantize`, correctly and incorrectly. The
package of a wrong program agrees with that program, so only a comparison with the float program
reveals the damage. Each network is validated without limits, and with limits slightly below what
the correct quantization reaches.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from random import Random
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node

from pipeline.features.quantization.quantize import QuantizationNotes, quantize
from pipeline.program.inputs import InputSet
from pipeline.program.operators import base_name
from pipeline.validate.metrics import OutputError, compare
from tests.support.configs import parse_config

from .judge import validated
from .samples import Sample, _packed
from .trained import Task

# How far below the correct quantization a user sets the limits. Anything above these isn't
# damage.
SQNR_BELOW, AGREEMENT_BELOW = 3.0, 0.1
SETTINGS = ("without limits", "with limits")
# A program, and how it diverges with observers, before anything is rounded: "" if it agrees.
Quantized = tuple[ExportedProgram, str]


class Record(NamedTuple):
    """The results for one quantized program.

    Attributes:
        outcomes: what the user is told about the quantization, for each of SETTINGS.
        lowering: the package's failures against the quantized program, which it should equal.
        sentences: all failures, for each of SETTINGS.
    """

    outcomes: tuple[str, ...]
    lowering: tuple[str, ...]
    sentences: tuple[tuple[str, ...], ...]


def judge(task: Task, damage: str = "") -> Record:
    """Judge the correct quantization, or a damaged one."""
    limits, program, diverges = choose_limits(task), quantize_rightly(task), ""
    if damage:
        program, diverges = DAMAGES[damage](task, Random(f"{task.name}/{damage}"))
        # The damage must be one that a user would mind.
        assert (measure(task, program).sqnr_db or 0.0) < limits["min_sqnr"]
    for node in program.graph.nodes:
        node.meta.pop("from_node", None)  # copying it is half of lowering
    sample = Sample(
        # Portable kernels reproduce a wrong program faithfully.
        _packed({"f": program}, {"f": [] if damage else ["xnnpack"]}),
        {"f": task.program},
        examples={"f": task.examples},
        quantized={"f": program},
    )
    divergences = {"f": diverges} if diverges else {}
    validations = [
        validated(each, each.files, 0, divergences)
        for each in (sample, replace(sample, limits=limits))
    ]
    sentences = tuple(tuple(validation.failures) for validation in validations)
    return Record(
        tuple(validation.methods[0].quantization["verdict"] for validation in validations),
        tuple(s for every in sentences for s in every if "against the quantized program" in s),
        sentences,
    )


def measure(
    task: Task, quantized: ExportedProgram, examples: Sequence[InputSet] = ()
) -> OutputError:
    """Compare a quantized program with the float program, on all held-out rows together."""
    programs = quantized.module(check_guards=False), task.program.module(check_guards=False)
    sets = examples or task.examples
    actual, expected = (torch.cat([program(*x.args) for x in sets]) for program in programs)
    return compare(actual, expected)


@cache
def choose_limits(task: Task) -> dict[str, float]:
    """Return limits slightly below what the correct quantization reaches.

    They are the SQNR on the worst example, which applies to each one, and the overall agreement.
    """
    right = quantize_rightly(task)
    worst = min(measure(task, right, [inputs]).sqnr_db or 0.0 for inputs in task.examples)
    agreement = measure(task, right).agreement or 0.0
    return {
        "min_sqnr": round(worst - SQNR_BELOW, 1),
        "min_agreement": round(agreement - AGREEMENT_BELOW, 2),
    }


@cache
def quantize_rightly(task: Task) -> ExportedProgram:
    return _quantize(task, task.for_quantizing, task.calibration)[0]


def _quantize(task: Task, module: nn.Module, sets: Sequence[InputSet]) -> Quantized:
    methods = {"f": {"partitioners": [], "quantize": task.options}}
    spec: Any = parse_config("p", {"model": "m", "methods": methods}, "p.yaml").methods["f"]
    notes = QuantizationNotes()
    program = quantize(task.export(module), spec.quantize, sets, notes=notes)
    prepared = notes.prepared
    if prepared is None or prepared["agrees"] is not False:
        return program, ""
    return program, f"the prepared program is at {prepared['outputs'][0]['sqnr_db']} dB"


def fold_of_a_shared_convolution(task: Task, random: Random) -> Quantized:
    """Fold the batch norms after a convolution that they share, as torchao does."""
    return _quantize(task, task.module, task.calibration)


def observed_other_data(task: Task, random: Random) -> Quantized:
    """Observe inputs that differ from those of the task."""
    generator = torch.Generator().manual_seed(11)
    shape = task.calibration[0].args[0].shape
    sets = [InputSet((torch.rand(shape, generator=generator),)) for _ in task.calibration]
    return _quantize(task, task.for_quantizing, sets)


def zero_points_swapped(task: Task, random: Random) -> Quantized:
    """Swap the zero points of two activations with very different quantization."""
    module, nodes = _calls_of(task, "quantize_per_tensor")
    pairs = [(a, b) for a in nodes for b in nodes if abs(a.args[2] - b.args[2]) > 40]
    first, second = random.choice(pairs)
    zero_points = first.args[2], second.args[2]
    for node, zero_point in ((second, zero_points[0]), (first, zero_points[1])):
        for user in (node, *node.users):
            user.update_arg(2, zero_point)
    module.recompile()
    return task.export(module), ""


def weight_scale_halved(task: Task, random: Random) -> Quantized:
    module, nodes = _calls_of(task, "dequantize_per_tensor")
    node = random.choice([node for node in nodes if node.args[0].op == "get_attr"])
    node.update_arg(1, node.args[1] * 0.5)
    module.recompile()
    return task.export(module), ""


def _calls_of(task: Task, operator: str) -> tuple[GraphModule, list[Node]]:
    """Return a copy of the correct quantization, and its calls of an operator."""
    module = copy.deepcopy(quantize_rightly(task).module(check_guards=False))
    calls = [node for node in module.graph.nodes if node.op == "call_function"]
    return module, [node for node in calls if base_name(node) == operator]


DAMAGES: dict[str, Callable[[Task, Random], Quantized]] = {
    function.__name__: function
    for function in (
        fold_of_a_shared_convolution,
        observed_other_data,
        zero_points_swapped,
        weight_scale_halved,
    )
}
