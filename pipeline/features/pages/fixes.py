"""What to paste for a failure: a command, or a line of the config. Empty where nothing is known."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.report.elements import Json

# Gates that hold a package to its accepted baseline.
_OF_BASELINE = ("max_size_growth", "max_sqnr_drop", "max_delegation_drop")


def fix_failure(report: Json, methods: Sequence[str]) -> str:
    """Return what helps with failures of methods of one cause: to leave the module that loses most
    to quantization in float, or else to see the failure again without a build."""
    named = [method for method in report["methods"] if method["method"] == methods[0]]
    for method in named:
        culprits = method.get("culprits") or ()
        subjects = {failure.get("about", "") for failure in method["failures"]}
        if "quantization" in subjects:
            return _fix_quantization(method["method"], culprits)
        if any(failure["inputs"] for failure in method["failures"]):
            folder = f"build/{report['package']}/reproduce/{method['method']}"
            return f"python {folder}/reproduce.py"
    return ""


def _fix_quantization(method: str, culprits: Sequence[Json]) -> str:
    modules = [culprit["module"] for culprit in culprits if culprit["module"]]
    if not modules:
        return f"methods: {{{method}: {{quantize: {{per_channel: true}}}}}}"
    return f"methods: {{{method}: {{quantize: {{modules: {{{modules[0]}: none}}}}}}}}"


def fix_gate(report: Json, gate: Json) -> str:
    """Return the command that accepts a package whose gate compares it with its baseline."""
    if gate["gate"] in _OF_BASELINE and report.get("baseline"):
        return f"doit baseline {report['package']}"
    return ""
