"""Measures the metrics of a package and of its source, and keeps the scores in the store."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from pipeline.features.metrics.calls import CallServer
from pipeline.features.metrics.intervals import (
    LEAST_SAMPLES,
    find_drop_interval,
    find_interval,
)
from pipeline.features.metrics.metric_files import FOLDER, find_inputs, split_name
from pipeline.features.metrics.scoring import score
from pipeline.features.metrics.sides import (
    Use,
    use_package,
    use_references,
    use_source,
)
from pipeline.moments import has_feature
from pipeline.plan.actions import Action
from pipeline.plan.kinds.export import ExportInputs
from pipeline.plan.kinds.parts import common_fields, operator_fields
from pipeline.plan.places import SYSTEM, Places, within
from pipeline.plan.plan import Plan
from pipeline.run.isolated import run_isolated
from pipeline.run.prove.measuring import Measurement, Measuring
from pipeline.store.errors import PipelineError, SourceError, did_you_mean, listed
from pipeline.store.files import record_bytes
from pipeline.store.remedies import explain_error
from pipeline.store.toolchain import host
from pipeline.validate.budget import OutOfTimeError
from pipeline.validate.method_result import MethodValidation

Json = Mapping[str, Any]
_MOST_NAMED = 5  # files in a message


class MetricMeasuring(Measuring):
    """Runs each metric's data through the package and its source.

    This happens after the package has run its examples.
    """

    def after_run(self, measurement: Measurement) -> None:
        for entry, settings in (self.subject.key.get("metrics") or {}).items():
            method = self._find_method(settings)
            asked = self.subject.asked
            # A metric without a method of its own may call any method, including methods that this
            # run doesn't validate.
            if asked is not None and (method is None or method not in asked):
                continue
            result = _find_result(measurement.validation.methods, method)
            if measurement.budget.spent:
                _leave_out(measurement, result, entry)
                continue
            with self.stages.stage("metrics"):
                self._measure(entry, settings, method, result, measurement)

    def _measure(
        self,
        entry: str,
        settings: Json,
        method: str | None,
        result: MethodValidation,
        measurement: Measurement,
    ) -> None:
        """Add an entry's values, or why it wasn't run, to a method's record, or fail the method."""
        reason = self._find_lack(settings["device"], method)
        if reason:
            facts = {"entry": entry, "not_run": reason}
            _add(measurement, result.method, entry, facts)
            return
        try:
            values = self._find_values(entry, settings, method, measurement)
        except OutOfTimeError:
            _leave_out(measurement, result, entry)
            return
        except PipelineError as error:
            result.fail("; ".join(error.lines), f"metric {entry}")
            return
        for name, value_facts in values.items():
            _add(measurement, result.method, name, value_facts)

    def _find_lack(self, device: str | None, method: str | None) -> str:
        """Return why a metric can't run here, or "" if it can.

        The reason is a problem of its device or, on this machine's bindings, of a method that it
        may call.
        """
        if device:
            setup = (self.subject.key["devices"] or {}).get(device) or {}
            return str(setup.get("problem", ""))
        reasons = self.subject.not_run()
        needed = [method] if method else [*reasons]
        return next((reasons[name] for name in needed if name in reasons), "")

    def _find_method(self, settings: Json) -> str | None:
        """Return the method that runs a metric's inputs if its file has no `predict`.

        None if the package has several methods and the config names none.
        """
        methods = [*self.subject.programs]
        if settings["method"] is None and len(methods) == 1:
            return methods[0]
        method: str | None = settings["method"]
        return method

    def _find_values(
        self, entry: str, settings: Json, method: str | None, measurement: Measurement
    ) -> dict[str, Json]:
        """Return the facts of each value of an entry, by the value's name. Raises PipelineError."""
        file, chosen = split_name(entry)
        run = partial(self._find_scores, file, settings, method)
        budget = measurement.budget
        export = settings.get("export")
        if export and has_feature("exporters"):
            action = self._find_export(export)
            use_side = partial(use_references, self.subject, budget, action)
            source = run("references", {"export": export}, use_side)
            # Check again: the exporter's inputs may have changed while its references ran.
            self._find_export(export)
        else:
            export = None
            source = run("source", {}, partial(use_source, self.subject, budget))
        device = settings["device"] or ""
        setup = (self.subject.key["devices"] or {}).get(device)
        files = sorted(self.subject.key["files"].values())
        fields = {"files": files, "device": device, "setup": setup}
        use_side = partial(use_package, self.subject, budget, measurement.files, device)
        package = run("package", fields, use_side)
        where = f"{FOLDER}/{file}.py"
        # Differences are paired sample by sample, so both sides must have had the same samples.
        if package["data"] != source["data"] or package["samples"] != source["samples"]:
            fault = "data yields different inputs each time, so nothing can be compared"
            raise SourceError(f"{where}: {fault}; seed its random numbers")
        names = package["values"]
        if chosen and chosen not in names:
            remedy = did_you_mean(chosen, [*names])
            raise SourceError(f"{where}: metric returns no value '{chosen}'; {remedy}")
        facts: dict[str, Json] = {}
        for name in [chosen] if chosen else names:
            full_name = f"{file}.{name}" if name else entry
            facts[full_name] = {
                "entry": entry,
                "device": device,
                "against": "PyTorch" if export else "exported program",
                **compare(source, package, name),
            }
        return facts

    def _find_export(self, export: Sequence[str]) -> Action[ExportInputs]:
        """Return an export action by its name and digest.

        Raises SourceError if the exporter's inputs no longer match the digest.
        """
        name, digest = export
        action = Plan(self.subject.workspace).models.export(name)
        if action.digest != digest:
            fault = "the exporter's inputs changed while the build ran; run again"
            raise SourceError(f"{action.inputs.path}: {fault}")
        return action

    def _find_scores(
        self,
        file: str,
        settings: Json,
        method: str | None,
        side: str,
        fields: Json,
        use_side: Callable[[Use], Any],
    ) -> Json:
        """Return the scores of one side, from the store if it has them.

        They have the fields that `scoring.score` returns, except `opened`. Raises PipelineError.
        """
        store = self.subject.workspace.store
        key = self._make_key(side, settings, method, fields)
        entry = None if self.subject.anew else store.get_by_key(key)
        # The entry may outlive its blob, which may have been evicted or damaged.
        if entry is not None and store.intact([entry.result["scores"]]):
            scores: Json = json.loads(store.read(entry.result["scores"]))
            return scores
        root = self.subject.workspace.root
        self._check_unchanged(file, settings["inputs"])
        explain = partial(explain_error, root=root)

        def run(calls: CallServer) -> Json:
            arguments = (root, file, calls, method, settings["samples"])
            function = partial(score, *arguments)
            try:
                answer: Json = run_isolated(function, calls, self.stages, explain)
            except OutOfTimeError:
                # It is a PipelineError too, but not the fault of the metric's file.
                raise
            except PipelineError as error:  # not from a device or an exporter
                raise _with_place(error, f"{FOLDER}/{file}.py") from error
            return answer

        scores = use_side(run)
        self._check_opened(file, scores["opened"], settings["inputs"])
        # Check again: if the file was edited while it ran, the key has its earlier content.
        self._check_unchanged(file, settings["inputs"])
        kept = {name: value for name, value in scores.items() if name != "opened"}
        # Unsorted: values are reported in the order in which the metric returns them.
        blob = store.put(record_bytes(kept, sort_keys=False))
        store.put_result(key, {"scores": blob})
        return kept

    def _make_key(
        self, side: str, settings: Json, method: str | None, fields: Json
    ) -> dict[str, Any]:
        """Return the key of the scores of one side.

        It contains neither limits nor the package's name, so that all packages of a model share the
        scores of their source.
        """
        inputs = self.subject.action.inputs
        programs = []
        for name, source in inputs.sources.items():
            programs.append([name, source.program, source.names])
        # Called in sequence, methods that share state return other values than methods that don't.
        sharing = inputs.config.emit.resolved().get("memory_planning")
        return {
            **common_fields("measure"),
            "kind": "metric",
            "side": side,
            "programs": programs,
            "metric": settings["inputs"],
            "method": method,
            "samples": settings["samples"],
            "sharing": sharing,
            "host": host(),
            **operator_fields(inputs.libraries),
            **fields,
        }

    def _check_unchanged(self, file: str, inputs: Json) -> None:
        """Raise SourceError if a metric's inputs are no longer those in its key."""
        present = find_inputs(self.subject.workspace, file)
        for name in sorted(present.keys() | inputs.keys()):
            if present.get(name) != inputs.get(name):
                raise SourceError(f"{name}: changed while the build ran; run again")

    def _check_opened(
        self, file: str, opened: Iterable[str], inputs: Collection[str]
    ) -> None:
        """Raise SourceError if a metric read files that its key doesn't cover."""
        places = Places(self.subject.workspace)
        undeclared = set()
        for path in opened:
            is_system = any(within(path, folder) for folder in SYSTEM)
            if places.wanted(path) and not is_system:
                undeclared.add(places.spell(path))
        undeclared -= {*inputs}
        if undeclared:
            names = listed(sorted(undeclared), _MOST_NAMED)
            fault = f"reads files that its INPUTS do not name: {names}"
            raise SourceError(f"{FOLDER}/{file}.py: {fault}")


def compare(source: Json, package: Json, name: str) -> dict[str, Any]:
    """Return the facts of one value: the package's value, the source's, and the drop between them.

    The package's value and the drop each have an interval or None. `halves` has both again, on each
    half of the samples. `still` is the value if the source gave all samples the first one's output.
    The facts also include the number of samples. Raises SourceError if the
    source's metric didn't return the value.
    """
    before = source["values"].get(name)
    after = package["values"][name]
    if before is None:
        raise SourceError(f"metric returns '{name}' for the package only")
    return {
        "value": after["value"],
        "interval": find_interval(after["value"], after["scores"], after["resampled"]),
        "source": before["value"],
        "drop": before["value"] - after["value"],
        "drop_interval": find_drop_interval(
            before["scores"],
            after["scores"],
            before["resampled"],
            after["resampled"],
        ),
        "halves": _compare_halves(before["halves"], after["halves"]),
        "samples": package["samples"],
        "more": package["more"],
        "least_samples": LEAST_SAMPLES,
        "still": before["still"],
        "methods": package["methods"],
    }


def _compare_halves(
    before: Sequence[float | None], after: Sequence[float | None]
) -> list[dict[str, float]]:
    """Return the package's value and the drop on each half, or an empty list if one has none."""
    halves = []
    for source, package in zip(before, after, strict=True):
        if source is None or package is None:
            return []
        halves.append({"value": package, "drop": source - package})
    return halves


def _with_place(error: PipelineError, where: str) -> PipelineError:
    """Return an error that names the metric's file, like the errors of `scoring`."""
    if any(where in line for line in error.lines):
        return error
    return SourceError(f"{where}: {'; '.join(error.lines)}")


def _find_result(
    results: Iterable[MethodValidation], method: str | None
) -> MethodValidation:
    """Return the result of a method, or the first program's if a metric runs several."""
    programs = [result for result in results if result.kind == "program"]
    chosen = [result for result in programs if result.method == method]
    return (chosen or programs)[0]


def _leave_out(measurement: Measurement, result: MethodValidation, entry: str) -> None:
    """Record that time ran out before a metric, so that its method doesn't pass."""
    result.left_out.append(f"metric {entry}")
    facts = {"entry": entry, "not_run": "validate.budget was exhausted; raise it"}
    _add(measurement, result.method, entry, facts)


def _add(measurement: Measurement, method: str, name: str, facts: Json) -> None:
    by_name = measurement.method_facts.setdefault(method, {}).setdefault("metrics", {})
    by_name[name] = facts
