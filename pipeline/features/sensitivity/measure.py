"""Measures a quantized method in probes, as JSON; runs in a separate process.

The figure is the SQNR of the worst output on the worst example, which is what `min_sqnr` limits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pipeline.backends import QUANTIZERS
from pipeline.backends.workspace_files import located
from pipeline.config.validation import ValidateConfig
from pipeline.features.sensitivity.annotated_switches import AnnotatedSwitches
from pipeline.features.sensitivity.calls import compare_calls, prepare
from pipeline.features.sensitivity.gradients import NoGradientError, estimate_noise
from pipeline.features.sensitivity.overrides import OPERATOR, find_operator_kinds
from pipeline.features.sensitivity.rows import (
    GREATEST,
    describe_kinds,
    describe_modules,
    round_decibels,
)
from pipeline.features.sensitivity.search import (
    Group,
    Noise,
    NoiseSearch,
    OutOfBudgetError,
    count_one_by_one,
    to_decibels,
    to_share,
)
from pipeline.features.sensitivity.switches import QuantizationSwitches
from pipeline.features.sensitivity.weight_switches import WeightSwitches
from pipeline.plan.actions import Action
from pipeline.program.eager import Source
from pipeline.program.inputs import InputSet
from pipeline.store.errors import PipelineError
from pipeline.store.workspace import Workspace
from pipeline.validate.budget import Budget

_MOST_CALLS = 32  # examples per probe, evenly spaced among all of them
# Kept modules that are also measured alone, beyond what the proposal needs.
_MOST_ALONE = 3
# The SQNR in dB that a program must reach with all its operators switched back to float: what the
# limits of validation allow between two correct implementations.
_FAITHFUL = 60.0


def measure_method(
    action: Action[Any],
    validation: ValidateConfig,
    workspace: Workspace,
    floor: float | None,
    budget: Budget,
) -> dict[str, Any]:
    """Return the cost of quantizing each module of a method, and which modules to keep in float.

    Args:
        action: the action that quantized the method.
        floor: the SQNR in dB to reach, or None if none is required.

    Raises:
        PipelineError: there are no examples, or the operators can't be switched one by one.
    """
    prepared = prepare(action, validation, workspace, _MOST_CALLS)
    program, quantized, examples, expected = prepared
    spec = located(action.inputs.spec, workspace.root)
    switches = _make_switches(program, quantized, spec)
    # A module and a kind of operator may stand for the same operators, which then run once.
    runs: dict[Group, Noise] = {}

    def probe(operators: Group) -> Noise:
        if operators not in runs:
            # The first probe always runs, or there would be no figure to report.
            if runs and budget.spent:
                raise OutOfBudgetError
            switches.switch(operators)
            runs[operators] = compare_calls(switches.run, examples, expected)
        return runs[operators]

    units = _name_units(switches, find_operator_kinds(spec))
    members = _group(units)
    if not members:
        raise PipelineError(f"{action.method}: nothing in it is quantized")
    in_float = to_decibels(max(probe(frozenset())))
    if in_float < max(_FAITHFUL, floor or 0.0):
        raise PipelineError(
            f"{action.method}: with all operators switched back to float it has {in_float:.0f} dB "
            f"against its float program: {action.inputs.spec.quantizer} changes more than "
            "rounding explains, so its modules can't be measured one by one"
        )

    def probe_units(names: Group) -> Noise:
        return probe(frozenset().union(*(members[name] for name in names)))

    estimates, gradients = _estimate(switches, units, examples, probe_units)
    search = NoiseSearch(estimates, probe_units, fixed=[""])
    search.run(None if floor is None else to_share(floor))
    kinds = _group(switches.kinds)
    operators = describe_kinds(kinds, probe, switches.saved)
    measured = _measure_alone(search.kept, probe_units)
    for name, group in members.items():
        if group in runs:
            measured[name] = max(runs[group])
    return {
        "floor_db": floor,
        "calls": len(examples),
        "sqnr_db": round_decibels(max(search.total)),
        "float_sqnr_db": min(round(in_float, 1), GREATEST),
        "kept": search.kept if search.is_needed and search.reached else [],
        "reached": search.reached,
        "complete": search.complete,
        "expected_db": round_decibels(max(search.rest)),
        "modules": describe_modules(
            search.kept, estimates, measured, members, switches.saved
        ),
        "operators": operators,
        "runs": len(runs),
        "gradients": gradients,
        "one_by_one": count_one_by_one(members, kinds),
    }


def _make_switches(program: Any, quantized: Any, spec: Any) -> QuantizationSwitches:
    if QUANTIZERS[spec.quantizer].apply_quantizer is None:
        return AnnotatedSwitches(program, quantized.program, quantized.origins, spec)
    bits = 4 if "int4" in str(getattr(spec, "scheme", "")) else 8
    kinds = find_operator_kinds(spec)
    return WeightSwitches(program, quantized.program, quantized.origins, bits, kinds)


def _estimate(
    switches: QuantizationSwitches,
    units: Mapping[str, str],
    examples: Sequence[InputSet],
    probe: Callable[[Group], Noise],
) -> tuple[dict[str, float], int]:
    """Return the share of noise of each unit alone, and the number of gradients computed.

    If there are no gradients, each unit is measured instead, and the number is 0.
    """
    try:
        return estimate_noise(switches, units, examples)
    except NoGradientError:
        names = dict.fromkeys(units.values())
        return {name: max(probe(frozenset([name]))) for name in names}, 0


def measure_sqnr(
    action: Action[Any], validation: ValidateConfig, workspace: Workspace
) -> dict[str, Any]:
    """Return the SQNR of a quantized program in dB: the worst output on the worst example.

    All examples are run.
    """
    _, quantized, examples, expected = prepare(action, validation, workspace)
    source = Source(quantized.program)

    def run(inputs: InputSet) -> list[Any]:
        source.reset()
        return source.run(inputs)

    noise = compare_calls(run, examples, expected)
    return {"sqnr_db": round_decibels(max(noise)), "calls": len(examples)}


def _group(names: Mapping[str, str]) -> dict[str, Group]:
    """Return the operators by module or kind, in the order of the graph."""
    groups: dict[str, set[str]] = {}
    for operator, name in names.items():
        groups.setdefault(name, set()).add(operator)
    return {name: frozenset(members) for name, members in groups.items()}


def _name_units(
    switches: QuantizationSwitches, keepable: frozenset[str] | None
) -> dict[str, str]:
    """Return the unit that each operator is kept in float with.

    A unit is a module or, for a kind of operator that never occurs in a module, the kind. It is ""
    for an operator that can't be kept in float.

    Args:
        keepable: the kinds that can be kept, or None for any.
    """
    within = {
        switches.kinds[name] for name, module in switches.operators.items() if module
    }
    units = {}
    for name, module in switches.operators.items():
        kind = switches.kinds[name]
        if not module and kind not in within and (keepable is None or kind in keepable):
            module = f"{OPERATOR}{kind}"
        units[name] = module
    return units


def _measure_alone(
    kept: Sequence[str], probe: Callable[[Group], Noise]
) -> dict[str, float]:
    """Measure the noise of the first few kept modules alone, within the budget."""
    measured: dict[str, float] = {}
    for name in kept[:_MOST_ALONE]:
        try:
            measured[name] = max(probe(frozenset([name])))
        except OutOfBudgetError:
            break
    return measured
