"""`python -m tests.mutations.quantization [--only PATTERN] [--all] [--json FILE]`: what a user is
told of quantization that went wrong.

Small trained networks are quantized rightly, and then wrongly in many ways. The package of a wrong
program gives what that program gives, so only a comparison with the float program shows the damage.
Each is validated without limits, and with limits a little below what the right quantization
reaches. It prints each damage that is passed and each right quantization that fails, then the
counts. About four minutes on two cores; `--all`, every damage on every network, takes ten.
"""

from __future__ import annotations

import argparse
import json
import logging
import multiprocessing
import os
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatch
from functools import cache, partial
from random import Random

import torch
from torch.export import ExportedProgram

from pipeline.program.inputs import InputSet
from pipeline.validate.metrics import OutputError, compare
from tests.support.quick_torch import make_torch_quick

from .quantized_activations import IN_ACTIVATIONS
from .quantized_groups import IN_GROUPS
from .quantized_weights import IN_BIASES, IN_WEIGHTS
from .quantizing import IN_QUANTIZING, Wrong, damage_graph, quantize_rightly
from .samples import Sample, _packed
from .trained import TASKS, Task

DAMAGES: Mapping[str, Callable[[Task, Random], Wrong | None]] = {
    **IN_QUANTIZING,
    **{
        name: partial(damage_graph, damage=damage)
        for name, damage in {**IN_WEIGHTS, **IN_GROUPS, **IN_BIASES, **IN_ACTIVATIONS}.items()
    },
}
# How far a user sets the limits below what the right quantization reaches. What stays above them is
# no damage.
SQNR_BELOW, AGREEMENT_BELOW = 3.0, 0.1
_PROCESSES = 2
NETWORKS = 2  # that a damage is tried on, without `--all`
OUTCOMES = ("failed", "not judged", "not run", "passed")
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

    @property
    def label(self) -> str:
        return f"{self.task}/{self.damage or 'right'}"


def judge(task: Task, damage: str = "") -> Record | None:
    """Judge the right quantization, or a damaged one: None where the damage does not apply, or
    changes nothing that a user would mind."""
    if not damage:
        return _judge(task, Wrong(quantize_rightly(task), ""), "", ["xnnpack"])
    wrong = DAMAGES[damage](task, Random(f"{task.name}/{damage}"))
    if wrong is None or _is_fine(task, wrong.program):
        return None
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


def run(pattern: str, everything: bool = False) -> Iterator[Record]:
    """Yield the records of right quantizations, then of damages, each on as many networks as
    NETWORKS, or on all."""
    rights = [partial(_judge_right, name, pattern) for name in TASKS]
    damages = [partial(_judge_damage, damage, pattern, everything) for damage in DAMAGES]
    with multiprocessing.get_context("fork").Pool(_PROCESSES) as pool:
        for records in pool.imap(_call, [*rights, *damages]):
            yield from records


def _call(job: Callable[[], list[Record]]) -> list[Record]:
    return job()


def _judge_right(name: str, pattern: str) -> list[Record]:
    if not fnmatch(f"{name}/right", pattern):
        return []
    records = [judge(task) for task in (TASKS[name], _vary(TASKS[name]))]
    return [record for record in records if record]


def _judge_damage(damage: str, pattern: str, everything: bool) -> list[Record]:
    tasks, first = list(TASKS.values()), list(DAMAGES).index(damage) % len(TASKS)
    records: list[Record] = []
    for task in tasks[first:] + tasks[:first]:
        if len(records) == NETWORKS and not everything:
            break
        chosen = fnmatch(f"{task.name}/{damage}", pattern)
        if chosen and (record := judge(task, damage)):
            records.append(record)
    return records


def _vary(task: Task) -> Task:
    """Return the same task with another network, quantized by another scheme where there is one."""
    options = dict(task.options)
    if "per_channel" in options:
        options["per_channel"] = not options["per_channel"]
    return replace(task, seed=1, options=options)


def describe(record: Record) -> str:
    """Return a line about a record whose outcome is not as it should be; "" about others."""
    bad = "failed" if not record.damage else "passed"
    settings = [s for s, outcome in zip(SETTINGS, record.outcomes, strict=True) if outcome == bad]
    if not settings:
        return ""
    figures = f"{record.sqnr:.1f} dB, agreement {record.agreement:.2f}"
    if record.damage:
        figures += f"; right {record.right_sqnr:.1f} dB; {record.what}"
    return f"{bad} {' and '.join(settings)}: {record.label}: {figures}"


def count(records: Sequence[Record]) -> str:
    """Return how many there are of each outcome, for right quantizations and for damages."""
    lines = [f"{'':34}" + "".join(f"{outcome:>12}" for outcome in OUTCOMES)]
    for kind in ("right", "damaged"):
        chosen = [record for record in records if bool(record.damage) == (kind == "damaged")]
        for place, setting in enumerate(SETTINGS):
            counts = Counter(record.outcomes[place] for record in chosen)
            cells = "".join(f"{counts[outcome] or '.':>12}" for outcome in OUTCOMES)
            lines.append(f"{f'{len(chosen)} {kind}, {setting}':34}{cells}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutations.quantization")
    parser.add_argument("--only", default="*", help="a pattern of network/damage, or network/right")
    parser.add_argument("--all", action="store_true", help="every damage on every network")
    parser.add_argument("--json", default=os.devnull, help="also writes every record to this file")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    make_torch_quick()
    records, bad = [], 0
    with open(arguments.json, "w", encoding="utf-8") as file:
        for record in run(arguments.only, arguments.all):
            records.append(record)
            file.write(json.dumps(asdict(record)) + "\n")
            file.flush()
            if line := describe(record):
                bad += 1
                print(line, flush=True)
    print(count(records))
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
