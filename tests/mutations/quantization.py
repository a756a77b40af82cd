"""What a user is told of a quantization that went wrong.

Small trained networks are quantized rightly, and then wrongly. The package of a wrong program gives
what that program gives, so only a comparison with the float program shows the damage. Each is
validated without limits, and with limits a little below what the right quantization reaches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from random import Random

import torch
from torch.export import ExportedProgram

from pipeline.program.inputs import InputSet
from pipeline.validate.metrics import OutputError, compare

from .quantizing import DAMAGES, Wrong, quantize_rightly
from .samples import Sample, _packed
from .trained import Task

# How far a user sets the limits below what the right quantization reaches. What stays above them is
# no damage.
SQNR_BELOW, AGREEMENT_BELOW = 3.0, 0.1
SETTINGS = ("without limits", "with limits")


@dataclass(frozen=True)
class Record:
    """What became of one quantized program.

    Attributes:
        damage: its name; "" of the right quantization.
        sqnr: of the quantized program against the float one, over all held-out rows, in dB.
        right_sqnr: the same of the right quantization.
        outcomes: what the user is told of the quantization, in each of SETTINGS.
        lowering: what is wrong with the package against the quantized program, which it equals.
        sentences: all failures, in each of SETTINGS.
    """

    task: str
    damage: str
    what: str
    sqnr: float
    right_sqnr: float
    agreement: float
    right_agreement: float
    outcomes: tuple[str, ...]
    lowering: tuple[str, ...]
    sentences: tuple[tuple[str, ...], ...]


def judge(task: Task, damage: str = "") -> Record:
    """Judge the right quantization, or a damaged one."""
    if not damage:
        return _judge(task, Wrong(quantize_rightly(task), ""), "", ["xnnpack"])
    wrong = DAMAGES[damage](task, Random(f"{task.name}/{damage}"))
    assert not _is_fine(task, wrong.program)  # it changes something that a user would mind
    # Portable kernels follow a quantized program to the letter; they have none for torchao's.
    backends = ["xnnpack"] if task.options["quantizer"] == "torchao" else []
    return _judge(task, wrong, damage, backends)


def _judge(task: Task, wrong: Wrong, damage: str, backends: list[str]) -> Record:
    quantized = wrong.program
    error, right = measure(task, quantized), measure(task, quantize_rightly(task))
    _forget_origins(quantized)
    sample = Sample(
        _packed({"f": quantized}, {"f": backends}),
        {"f": task.program},
        examples={"f": task.examples},
        quantized={"f": quantized},
        dynamic=task.dynamic,
    )
    held = replace(sample, limits=_choose_limits(task))
    told = [_validate(each, wrong.departs) for each in (sample, held)]
    return Record(
        task.name,
        damage,
        wrong.what,
        error.sqnr_db or 0.0,
        right.sqnr_db or 0.0,
        error.agreement or 0.0,
        right.agreement or 0.0,
        tuple(outcome for outcome, _ in told),
        tuple(s for _, every in told for s in every if "against the quantized program" in s),
        tuple(every for _, every in told),
    )


def _forget_origins(program: ExportedProgram) -> None:
    """Forget what nodes were made of through several exports: copying that is half of lowering."""
    for node in program.graph.nodes:
        node.meta.pop("from_node", None)


def measure(
    task: Task, quantized: ExportedProgram, examples: Sequence[InputSet] = ()
) -> OutputError:
    """Compare a quantized program with the float one, on all held-out rows together."""
    programs = quantized.module(check_guards=False), task.program.module(check_guards=False)
    sets = examples or task.examples
    actual, expected = (torch.cat([program(*x.args) for x in sets]) for program in programs)
    return compare(actual, expected)


@cache
def _choose_limits(task: Task) -> dict[str, float]:
    """Return limits a little below what the right quantization reaches: the SQNR on its worst
    example, which each is held to, and the agreement over all."""
    right = quantize_rightly(task)
    worst = min(measure(task, right, [inputs]).sqnr_db for inputs in task.examples)
    return {
        "min_sqnr": round(worst - SQNR_BELOW, 1),
        "min_agreement": round(measure(task, right).agreement - AGREEMENT_BELOW, 2),
    }


def _is_fine(task: Task, quantized: ExportedProgram) -> bool:
    return measure(task, quantized).sqnr_db >= _choose_limits(task)["min_sqnr"]


def _validate(sample: Sample, departs: str) -> tuple[str, tuple[str, ...]]:
    """Return the outcome of the quantization, and all failures."""
    from .judge import validated

    validation = validated(sample, sample.files, 0, {"f": departs} if departs else {})
    record = validation.methods[0].quantization
    assert record is not None
    return record["verdict"], tuple(validation.failures)
