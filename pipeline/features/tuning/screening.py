"""Predicts the figures of all combinations of a space from quantized programs alone.

Combinations that quantize a method in the same way share its prediction, so a space of hundreds
needs only a few. Predictions are results in the store: a second search measures nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.features.tuning.figures import split_limit
from pipeline.features.tuning.space import Choice, Space, compose_choice
from pipeline.features.tuning.trials import TrialFolder
from pipeline.plan.kinds.parts import Libraries, common_fields, operator_fields
from pipeline.plan.plan import Plan
from pipeline.report.records import MOST_SQNR
from pipeline.run.action_log import logging_to
from pipeline.run.isolated import run_isolated
from pipeline.store.digest import Digest, canonical_json, hash_file, hash_json
from pipeline.store.errors import ConfigErrors
from pipeline.store.forms import Count
from pipeline.store.toolchain import host

PREDICTED = ("size", "sqnr", "max_abs")  # figures
PREDICTION: dict[str, Any] = {
    "constants": {Digest: Count},
    "errors": {"sqnr?": float, "max_abs?": float},
}
MOST_SCREENED = 1024  # combinations; each needs its config parsed
_KIND = "tune-prediction"
_LOG = "screening.log"
_QUANTIZE = "quantize"
# A method and its quantization: its name, and the quantizer with its options as canonical JSON.
_Part = tuple[str, bytes]


class Screening:
    """The predictions for the combinations of a space.

    Attributes:
        names: the names of the trials that combinations make; only the first of several
            combinations that mean the same has one.
        faults: why a combination can't be a package.
        duplicates: the combinations that mean the same as one in `names`.
        figures: the figures of `PREDICTED`, by combination.
        programs: the number of quantized programs that the predictions come from.
    """

    def __init__(self, space: Space) -> None:
        self.names: dict[Choice, str] = {}
        self.faults: dict[Choice, str] = {}
        self.duplicates: set[Choice] = set()
        self.figures: dict[Choice, dict[str, float]] = {}
        self.programs = 0
        self._space = space
        self._parts: dict[Choice, list[_Part]] = {}
        self._partitioners: dict[Choice, list[tuple[str, ...]]] = {}  # of each part
        self._makers: dict[_Part, str] = {}  # a trial with each part

    def run(self, plan: Plan, folder: TrialFolder) -> None:
        """Predict the figures, after quantizing what no trial has quantized yet."""
        for choice in self._space.list_choices():
            self._add(choice, folder)
        quantized = [part for part in self._makers if part[1]]
        tasks = [f"{self._makers[part]}/{part[0]}" for part in quantized]
        errors = folder.build(_QUANTIZE, tasks)
        part_errors = {
            part: errors.get(task, "")
            for part, task in zip(quantized, tasks, strict=True)
        }
        predictions = self._predict(plan, folder, part_errors)
        self.programs = sum(part in predictions for part in quantized)
        for choice, parts in self._parts.items():
            faults = [part_errors[part] for part in parts if part_errors.get(part)]
            if faults:
                self.faults[choice] = faults[0]
                del self.names[choice]
            else:
                part_figures = [predictions.get(part) for part in parts]
                self.figures[choice] = predict_package(
                    part_figures, self._partitioners[choice]
                )

    def _add(self, choice: Choice, folder: TrialFolder) -> None:
        try:
            document = compose_choice(self._space, choice)
            name, config = folder.identify(document)
        except ConfigErrors as errors:
            self.faults[choice] = str(errors.problems[0])
            return
        # An alternative that spells out a default means the same as one without it.
        if name in self.names.values():
            self.duplicates.add(choice)
            return
        self.names[choice] = name
        self._parts[choice] = []
        self._partitioners[choice] = [
            tuple(spec.name for spec in method_config.partitioners)
            for method_config in config.methods.values()
        ]
        for method, method_config in config.methods.items():
            spec = method_config.quantize
            options = b"" if spec is None else canonical_json(spec.resolved())
            part = (method, options)
            self._parts[choice].append(part)
            if part not in self._makers:
                self._makers[part] = folder.add(document)

    def _predict(
        self, plan: Plan, folder: TrialFolder, errors: Mapping[_Part, str]
    ) -> dict[_Part, Mapping[str, Any]]:
        """Return the predictions for parts, from the store or made now."""
        trial_plan = folder.make_plan()
        predictions: dict[_Part, Mapping[str, Any]] = {}
        lacking: dict[_Part, tuple[dict[str, Any], dict[str, Any]]] = {}
        store = plan.workspace.store
        for part, package in self._makers.items():
            if errors.get(part):
                continue
            request = _make_request(trial_plan, package, part[0])
            if request is None:  # the model can't be exported, which trials will report
                continue
            libraries = trial_plan.inputs.libraries(package)
            key = _make_key(request, libraries)
            entry = store.get(hash_json(key))
            if entry is not None:
                predictions[part] = entry.result
            else:
                lacking[part] = key, request
        if not lacking:
            return predictions
        requests = [request for _, request in lacking.values()]
        results = _run_isolated(requests, libraries, plan, folder)
        for (part, (key, _)), result in zip(lacking.items(), results, strict=True):
            if "error" not in result:
                store.put_result(key, result, pushes=False)
                predictions[part] = result
        return predictions


def _make_request(plan: Plan, package: str, method: str) -> dict[str, Any] | None:
    """Return a part for `prediction.predict_methods`, or None if something in it is unknown."""
    sources = plan.methods(package)
    if not sources or method not in sources:
        return None
    action = (plan.quantizes(package) or {}).get(method)
    limits = plan.config(package).validation.methods.get(method)
    files = []
    for name in (limits and limits.examples) or ():
        digest = plan.workspace.find_data(name)
        if digest is None:
            return None
        files.append((name, digest))
    return {
        "method": method,
        "source": sources[method],
        "quantize": action and action.digest,
        "files": files,
    }


def _make_key(request: Mapping[str, Any], libraries: Libraries) -> dict[str, Any]:
    # The common fields of keys don't include the code of features.
    code = Path(__file__).with_name("prediction.py")
    source = request["source"]
    return {
        **common_fields("measure"),
        **operator_fields(libraries),
        "kind": _KIND,
        "prediction_code": hash_file(code),
        "host": host(),
        "program": source.program,
        "quantize": request["quantize"],
        "examples": [digest for _, digest in request["files"]] or source.examples,
    }


def _run_isolated(
    requests: Sequence[Mapping[str, Any]],
    libraries: Libraries,
    plan: Plan,
    folder: TrialFolder,
) -> list[dict[str, Any]]:
    def predict() -> list[dict[str, Any]]:
        from pipeline.features.tuning.prediction import predict_methods

        return predict_methods(requests, libraries, plan.workspace)

    with logging_to(folder.find_log(_LOG)):
        results: list[dict[str, Any]] = run_isolated(predict)
    return results


def predict_package(
    parts: Sequence[Mapping[str, Any] | None], partitioners: Sequence[tuple[str, ...]]
) -> dict[str, float]:
    """Return the figures of a package from those of its methods.

    Methods with the same partitioners share equal constants. Others store them separately: a
    delegate's weights don't have the layout of a portable kernel's constants.

    Returns {} if a method has no prediction.
    """
    constants: dict[tuple[tuple[str, ...], str], int] = {}
    sqnr, max_abs = MOST_SQNR, 0.0
    for part, names in zip(parts, partitioners, strict=True):
        if part is None:
            return {}
        for digest, size in part["constants"].items():
            constants[names, digest] = size
        sqnr = min(sqnr, part["errors"].get("sqnr", sqnr))
        max_abs = max(max_abs, part["errors"].get("max_abs", max_abs))
    return {"size": float(sum(constants.values())), "sqnr": sqnr, "max_abs": max_abs}


def can_screen(space: Space) -> bool:
    """Return whether predictions can tell combinations apart: some axis sets a quantization."""
    return space.size <= MOST_SCREENED and any(map(is_screened, space.axes))


def limits_prediction(limits: Iterable[str]) -> bool:
    """Return whether a limit is on a predicted figure."""
    return any(split_limit(name)[1] in PREDICTED for name in limits)


def is_screened(axis: str) -> bool:
    """Return whether predictions see the changes of an axis."""
    return _QUANTIZE in axis.split(".")
