"""Gates: limits that a config sets on a package, checked against the records of its build.

A gate is a module of `pipeline/features/gates/kinds/`. If a backend has kernels instead of a
delegate, the nodes that they run count as delegated. A gate that can't be checked fails, and
explains how to make it checkable. Three cases are exempt, with an explanation: methods that this
machine can't run, as in the rest of a validation; the delegation of a method that has no
partitioners on purpose; and, outside CI, a comparison with a baseline that nobody has recorded yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from pipeline.features.gates.by_device import find_device_facts, iter_limits
from pipeline.features.gates.figures import make_figures
from pipeline.features.gates.gate import NOTHING, Gate, GateSubject, Json
from pipeline.features.gates.kinds import find_gates
from pipeline.features.gates.records import GateExemption, GateRecord
from pipeline.report.method_records import ALL, LATENCY, UNASKED

NO_BASELINE = "no baseline yet"


class _Setting(NamedTuple):
    """A limit set in the config, for all methods or for the method itself.

    `place` is file and line. `requires_baseline` makes a missing baseline a failure.
    """

    limit: Any
    of_method: bool
    place: str
    requires_baseline: bool


def failed_gates(gates: Iterable[GateRecord]) -> list[str]:
    """Return the distinct failures of a package's gates."""
    return list(dict.fromkeys(gate["sentence"] for gate in gates if not gate["ok"]))


def check_gates(
    settings: Json,
    manifest: Json,
    contents: Json | None = None,
    validation: Json | None = None,
    baseline: Json | None = None,
    places: Mapping[str, str] | None = None,
    family: Json = NOTHING,
    contract: Json | None = None,
) -> list[GateRecord]:
    """Check the gates that are set: the package's, then method by method.

    Args:
        settings: the resolved `validate` section of the config: `gates`, and `methods`, some with
            their own gates; plus the runtimes of `targets`, and whether a missing baseline is a
            failure.
        validation: the record of the package's validation, for its `methods` and the lines of calls
            that delegates left.
        places: the file and line at which each path in the config (`validate.gates.max_size`) was
            written.
        family: digest and bytes of the files of the packages of its family, by package and name.
    """
    package = manifest["package"]
    now = make_figures(manifest, contents, validation)
    accepted = {} if baseline is None else baseline["methods"]
    inside = (contents or {}).get("methods", {})
    runs = {
        record["method"]: record for record in (validation or {}).get("methods", ())
    }
    targets = settings.get("targets", {})
    needs = (contract or {}).get("methods", {})
    subjects = [
        GateSubject(
            package, None, now, baseline, {}, {}, (), family, contract, (), targets
        )
    ]
    for name, figures in now["methods"].items():
        facts = manifest["methods"][name]
        run = runs.get(name, {})
        arenas = inside.get(name, {}).get("planned_memory", ())
        undelegated = (
            (validation or {}).get("delegation", {}).get(name, {}).get("left", ())
        )
        subjects.append(
            GateSubject(
                *(package, name, figures, accepted.get(name), facts, run, arenas),
                contract=needs.get(name),
                left=undelegated,
                targets=targets,
            )
        )
    records: list[GateRecord] = []
    for subject in subjects:
        for gate in find_gates("package" if subject.method is None else "method"):
            setting = _find_setting(gate, subject.method, settings, places or {})
            if setting is None:
                continue
            if gate.by_device:
                records += _check_on_devices(
                    gate, subject, setting, baseline is not None
                )
            else:
                records.append(_check(gate, subject, setting, baseline is not None))
    return records


def _find_setting(
    gate: Gate, method: str | None, settings: Json, places: Mapping[str, str]
) -> _Setting | None:
    """Return the limit of a gate, the method's before the package's, or None if it is not set."""
    place = places.get(f"validate.gates.{gate.name}", "")
    if gate.name == "runs_on":
        place = place or places.get("target", "")
    place = places.get(f"validate.methods.{method}.gates.{gate.name}", place)
    limit = settings["methods"].get(method, {}).get("gates", {}).get(gate.name)
    of_method = limit is not None
    if not of_method:
        limit = settings["gates"].get(gate.name)
    if limit is None:
        return None
    return _Setting(limit, of_method, place, settings.get("requires_baseline", False))


def _check(
    gate: Gate, subject: GateSubject, setting: _Setting, has_baseline: bool
) -> GateRecord:
    figure: float | None = None
    limit = 0 if isinstance(setting.limit, list) else setting.limit
    unmeasured = _why_unmeasured(gate, subject, setting, has_baseline)
    exemption: GateExemption | None = None
    if unmeasured is not None:
        sentence, exemption = unmeasured
        ok = exemption is not None
    else:
        figure, sentence = gate.measure(subject, setting.limit)
        ok = figure is not None and gate.holds(figure, limit)
        if subject.method is not None:
            sentence = f"{subject.method}: {sentence}"
    record = GateRecord(
        gate=gate.name,
        method=subject.method,
        unit=gate.unit,
        figure=figure,
        limit=limit,
        ok=ok,
        sentence="" if ok and unmeasured is None else sentence,
        place=setting.place,
    )
    if exemption is not None:
        record["left_alone"] = exemption
    return record


def _check_on_devices(
    gate: Gate, subject: GateSubject, setting: _Setting, has_baseline: bool
) -> Iterable[GateRecord]:
    """Check a gate on each device to which its limit applies.

    Only programs are called, so other methods have no device figures.
    """
    if subject.run and subject.run.get("kind") != "program":
        return
    for device, limit in iter_limits(setting.limit, subject.run):
        on_device = subject._replace(device=device)
        record = _check(gate, on_device, setting._replace(limit=limit), has_baseline)
        if device:
            record["device"] = device
        yield record


def _why_not_on_device(gate: Gate, subject: GateSubject) -> tuple[str, bool] | None:
    """Return why a device has no figure of a method, and whether that exempts the gate.

    Returns None if it may have a figure.
    """
    method, device = subject.method, subject.device
    if not device:
        return (
            f"{method}: {gate.name} needs a device; name some in validate.devices",
            False,
        )
    facts = find_device_facts(subject)
    if not facts:
        return f"{method}: {gate.name}: validate.devices does not name {device}", False
    if facts["verdict"] == "not run":
        return (
            f"{method}: {gate.name} was not checked on {device}: {facts['reason']}",
            True,
        )
    reason = (facts.get("growth") or {}).get("reason")
    if gate.needs_baseline and reason:
        return f"{method}: {gate.name} was not judged on {device}: {reason}", True
    return None


def _why_unmeasured(
    gate: Gate, subject: GateSubject, setting: _Setting, has_baseline: bool
) -> tuple[str, GateExemption | None] | None:
    """Return why there is nothing to check, in a sentence, and the exemption if the gate is exempt.

    Returns None if there is a figure.
    """
    method = subject.method
    # Unrequested methods are exempt from every gate.
    unasked = UNASKED in subject.run.get("left_out", ())
    not_run = ""
    if gate.needs_run or unasked:
        not_run = _why_not_run(gate, subject.run)
    if not_run:
        sentence = f"{method}: {gate.name} was not checked, since it {not_run}"
        return sentence, "not run"
    if gate.by_device and (lacking := _why_not_on_device(gate, subject)):
        sentence, is_left_alone = lacking
        return sentence, "not run" if is_left_alone else None
    on_purpose = gate.needs_partitioners and not setting.of_method
    if on_purpose and not subject.facts["lowering"].get("partitioners"):
        sentence = f"{method}: no partitioners, by choice (`partitioners: []`)"
        return sentence, "no partitioners"
    required = setting.requires_baseline
    if gate.needs_baseline and (
        missing := _describe_missing(gate, subject, has_baseline, required)
    ):
        return missing, None if required else "no baseline"
    return None


def _why_not_run(gate: Gate, run: Json) -> str:
    """Return why a run has no figures of a method, to end a sentence; "" if it may have some."""
    left_out = run.get("left_out", ())
    if run.get("not_run"):
        return f"did not run: {run['not_run']}"
    if ALL in left_out or (LATENCY in left_out and gate.is_timed):
        return "was left out: validate.budget was exhausted"
    if UNASKED in left_out:
        return f"was {UNASKED}"
    return ""


def _describe_missing(
    gate: Gate, subject: GateSubject, has_baseline: bool, required: bool
) -> str:
    """Return a sentence on what a gate needs that the baseline lacks, or "" if it lacks nothing."""
    command = f"`doit baseline {subject.package}`"
    if not has_baseline:  # the same sentence for all methods, to be reported once
        if required:
            return f"no baseline; {command} accepts the current figures"
        return f"{NO_BASELINE}; {command} records one"
    if subject.before is None:
        lack, figures = "not in the baseline", "its figures"
    elif (
        gate.name == "max_sqnr_drop"
        and subject.now["sqnr_db"]
        and subject.before["sqnr_db"] is None
    ):
        lack, figures = "no SQNR in the baseline", "it"
    else:
        return ""
    return f"{subject.method}: {lack}{'' if required else ' yet'}; {command} accepts {figures}"
