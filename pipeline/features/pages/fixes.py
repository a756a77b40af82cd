"""The fix to paste for a failure: a command or a config line, or "" if none is known."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.features.pages.elsewhere import is_elsewhere
from pipeline.report.elements import Json
from pipeline.report.failures import FailureGroup, describe_failure

# Gates that compare a package with its accepted baseline.
_OF_BASELINE = ("max_size_growth", "max_sqnr_drop", "max_delegation_drop")
_TRAINING = "in training mode"
_EVALUATION = "model.eval()  # before torch.export.export"
_METRIC = "metric "  # the inputs of a metric's failure, which no script reproduces
_UNROUNDED = "before anything is rounded"  # a different program, whatever its ranges


def fix_failure(report: Json, group: FailureGroup) -> str:
    """Return a fix for the failures of one cause, or "" if none is known.

    The fix exports in evaluation mode, keeps the module that loses most to quantization in float,
    or reproduces the failure without a build.
    """
    for method in report["methods"]:
        for failure in method["failures"]:
            if describe_failure(failure) == group.description:
                return _fix(report["package"], method, failure)
    return ""


def _fix(package: str, method: Json, failure: Json) -> str:
    subject = failure.get("about", "")
    if _TRAINING in failure["what"]:
        return _EVALUATION
    if subject == "quantization" and _UNROUNDED not in failure["what"]:
        return _fix_quantization(method["method"], method.get("culprits") or ())
    is_call = failure["inputs"] and not failure["inputs"].startswith(_METRIC)
    if not subject and is_call and not is_elsewhere(method, failure):
        return f"python build/{package}/reproduce/{method['method']}/reproduce.py"
    return ""


def _fix_quantization(method: str, culprits: Sequence[Json]) -> str:
    modules = [culprit["module"] for culprit in culprits if culprit["module"]]
    if not modules:
        return f"methods: {{{method}: {{quantize: {{per_channel: true}}}}}}"
    return f"methods: {{{method}: {{quantize: {{modules: {{{modules[0]}: none}}}}}}}}"


def fix_gate(report: Json, gate: Json) -> str:
    """Return the command that accepts a package as its baseline, or "" for other gates."""
    if gate["gate"] in _OF_BASELINE and report.get("baseline"):
        return f"doit baseline {report['package']}"
    return ""
