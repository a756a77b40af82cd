"""Writes reports as JUnit XML for CI servers: a suite per package, a case per check.

The XML is valid against the schema of Jenkins' xUnit plugin, junit-10.xsd, and meets two further
expectations: properties come before cases, and a case has at most one result. Ant's schema also
requires the host and the time, which differ between any two builds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from xml.etree import ElementTree as Xml

from pipeline.moments import find_code
from pipeline.report.elements import Json
from pipeline.report.failures import failed_by_check, package_failures
from pipeline.report.formatting import error
from pipeline.report.method_records import ALL, UNASKED
from pipeline.report.records import is_unchecked
from pipeline.report.references import describe_limits, name_references
from pipeline.report.verdicts import PASSED
from pipeline.store.errors import plural
from pipeline.store.visible import visible


def junit(reports: Iterable[Json], not_built: Mapping[str, str]) -> bytes:
    """Return one XML document with a suite for each package, sorted by name.

    Args:
        not_built: the error of each package that could not be built or validated, by package.
    """
    built = {str(report["package"]): report for report in reports}
    root = Xml.Element("testsuites", {"name": "pte-pipeline"})
    for package in sorted(built.keys() | not_built.keys()):
        suite = Xml.SubElement(root, "testsuite", {"name": package})
        if package in not_built:
            error = not_built[package]
            kind = error.partition(" ")[0]  # "compile" in "compile decode: ..."
            check = "validated" if kind == "validate" else "lowered"
            _add_case(suite, package, check, [error], kind=kind)
        else:
            _add_report(suite, package, built[package])
        suite.attrib |= _totals(suite)
    root.attrib |= _totals(root)
    del root.attrib["skipped"]  # Jenkins' schema allows it on suites only
    Xml.indent(root)
    # Escapes the characters that XML 1.0 can't represent.
    text = visible(Xml.tostring(root, encoding="unicode"))
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{text}\n'.encode()


def _add_report(suite: Xml.Element, package: str, report: Json) -> None:
    """Add the cases of each method, gate and metric, and one for the package's other failures."""
    properties = _properties(report)
    if properties:
        holder = Xml.SubElement(suite, "properties")
        for name, value in properties.items():
            Xml.SubElement(holder, "property", {"name": name, "value": value})
    running_times = report.get("seconds", {})
    for method in report["methods"]:
        classname = f"{package}.{method['method']}"
        _add_method(
            suite,
            classname,
            method,
            running_times.get(method["method"], 0.0),
        )
    for gate in report.get("gates") or ():
        if gate["method"]:
            classname = f"{package}.{gate['method']}"
        else:
            classname = package
        _add_gate(suite, classname, gate)
    metrics = report.get("metrics") or ()
    for row in metrics:
        _add_metric(suite, f"{package}.{row['method']}", row)
    explained = {row["sentence"] for row in metrics}
    failures = [text for text in package_failures(report) if text not in explained]
    _add_case(suite, package, "package", failures)


def _add_metric(suite: Xml.Element, classname: str, row: Json) -> None:
    """Add a case for one limit of a task metric, or for a value that the config doesn't limit."""
    name = f"metric {row['metric']}"
    if row.get("kind"):
        name = f"{name} {row['kind']}"
    failures: list[str] = []
    skipped = ""
    if row["verdict"] == "failed":
        failures = [row["sentence"]]
    elif row["verdict"] in ("not judged", "not run"):
        skipped = f"{row['verdict']}: {row['sentence']}"
    facts: list[str] = []
    for title, key in (("package", "value"), ("source", "source"), ("drop", "drop")):
        if key in row:
            facts.append(f"{title} {row[key]:.6g}")
    if row["limit"] is not None:
        facts.append(f"limit {row['limit']:g}")
    if "samples" in row:
        facts.append(f"{row['samples']} samples")
    output = f"{', '.join(facts)}\n{row.get('place', '')}".strip()
    _add_case(suite, classname, name, failures, skipped, output)


def _add_gate(suite: Xml.Element, classname: str, gate: Json) -> None:
    if gate["ok"]:
        failures = []
    else:
        failures = [gate["sentence"]]
    skipped = ""
    if is_unchecked(gate):
        skipped = gate["sentence"] or "not checked"
    output = f"{gate['sentence']}\n{gate.get('place', '')}".strip()
    _add_case(suite, classname, gate["gate"], failures, skipped, output)


def _add_method(
    suite: Xml.Element, classname: str, method: Json, seconds: float
) -> None:
    """Add the cases of a method: interface, source, numerics, quantization and reference."""
    failed = failed_by_check(method)
    interface = failed.get("interface", [])
    source = failed.get("source", [])
    wrong = failed.get("numerics", [])
    if wrong:
        wrong += _describe_culprits(method)
    unseen = _describe_unseen(method)
    _add_case(suite, classname, "interface", interface, skipped=unseen)
    if source:
        _add_case(suite, classname, "source", source)
    if method["runs"] or method.get("random") or wrong:
        _add_numerics(suite, classname, method, wrong, seconds)
    elif not interface and not source:
        why = method["not_run"] or unseen or "nothing to run it on"
        _add_case(suite, classname, "numerics", skipped=why)
    quantization = method.get("quantization")
    if quantization:
        lost = failed.get("quantization", [])
        if lost and not wrong:
            lost += _describe_culprits(method)
        _add_quantization(suite, classname, quantization, lost)
    reference = method.get("reference")
    if reference:
        _add_reference(suite, classname, reference, failed.get("reference", []))


def _describe_unseen(method: Json) -> str:
    """Return why a method was not checked at all, or "" if it was."""
    left_out = method.get("left_out", ())
    if UNASKED in left_out:
        return UNASKED
    if ALL in left_out:
        return "validate.budget was exhausted"
    return ""


def _add_numerics(
    suite: Xml.Element,
    classname: str,
    method: Json,
    wrong: Sequence[str],
    seconds: float,
) -> None:
    notes: list[str] = []
    for skip in method["skipped"]:
        notes.append(f"skipped {skip['origin']}: {skip['reason']}")
    for input_set in method.get("left_out", ()):
        notes.append(f"left out {input_set}: validate.budget")
    skipped = ""
    if method["verdict"] == "not judged":
        skipped = f"not judged: {method.get('verdict_reason', '')}"
    _add_case(
        suite,
        classname,
        "numerics",
        wrong,
        skipped,
        "\n".join(notes),
        seconds,
    )


def _add_quantization(
    suite: Xml.Element, classname: str, quantization: Json, lost: Sequence[str]
) -> None:
    verdict = quantization["verdict"]
    why = quantization["reason"]
    skipped = ""
    if verdict in ("not judged", "not run"):
        skipped = f"{verdict}: {why}"
    _add_case(suite, classname, "quantization", lost, skipped, why)


def _add_reference(
    suite: Xml.Element, classname: str, reference: Json, diverges: Sequence[str]
) -> None:
    verdict = reference["verdict"]
    why = _describe_reference(reference)
    if verdict == PASSED:
        skipped = ""
    else:
        skipped = f"{verdict}: {why}"
    _add_case(suite, classname, "reference", diverges, skipped, why)


def _describe_reference(reference: Json) -> str:
    """Return the outcome of the comparison with a reference.

    If it passed, that is how close the exported program came; if not, it is the reason.
    """
    if reference["verdict"] != PASSED:
        return str(reference["reason"])
    worst = reference["max_abs"]
    near = "exactly"
    if worst:
        near = f"within {error(worst)}"
    calls = (
        f"{plural(reference['calls'], 'call')} of {name_references(reference)} {near}"
    )
    limits = describe_limits(reference)
    if limits:
        return f"{calls}, held to {limits}"
    return calls


def _describe_culprits(method: Json) -> list[str]:
    """Return a line for each operator that causes a method's failure, then notes on the search."""
    texts = []
    for culprit in method.get("culprits", ()):
        where = ", ".join(filter(None, (culprit["operator"], culprit["module"])))
        line = ""
        if culprit["line"]:
            line = f"\n  {culprit['line']}"
        texts.append(f"{where}: {culprit['what']}{line}")
    return [*texts, *(method.get("culprit_notes") or ())]


def _properties(report: Json) -> dict[str, str]:
    """Return the facts of a package by name: model, target, sizes, delegation and digests."""
    facts: dict[str, str] = {}
    for name in ("model", "target"):
        if report.get(name):
            facts[name] = str(report[name])
    for name, size in sorted(report.get("sizes", {}).items()):
        facts[f"size:{name}"] = str(size)
    for name, counts in sorted(report.get("delegation", {}).items()):
        facts[f"delegated_nodes:{name}"] = (
            f"{counts['delegated_nodes']}/{counts['nodes']}"
        )
    for name, content in sorted(report.get("files", {}).items()):
        facts[f"digest:{name}"] = str(content)
    return facts


def _add_case(
    suite: Xml.Element,
    classname: str,
    name: str,
    failures: Sequence[str] = (),
    skipped: str = "",
    output: str = "",
    seconds: float = 0.0,
    kind: str = "validate",
) -> None:
    """Add the case of one check.

    Args:
        classname: the name by which CI servers group cases.
        skipped: why the check was not run or not judged.
        kind: the kind of the action; it determines the error code that ends a failure's message.
    """
    attributes = {"classname": classname, "name": name, "time": f"{seconds:.3f}"}
    element = Xml.SubElement(suite, "testcase", attributes)
    if failures:
        first = failures[0].partition("\n")[0]
        if code := find_code(first, kind):
            first = f"{first} [{code}]"
        failure = Xml.SubElement(element, "failure", {"message": first, "type": name})
        failure.text = "\n".join(failures)
    elif skipped:
        Xml.SubElement(element, "skipped", {"message": skipped})
    if output:
        Xml.SubElement(element, "system-out").text = output


def _totals(parent: Xml.Element) -> dict[str, str]:
    totals = {
        "tests": _count(parent, "testcase"),
        "failures": _count(parent, "failure"),
        "errors": _count(parent, "error"),
        "skipped": _count(parent, "skipped"),
    }
    seconds = sum(float(case.attrib["time"]) for case in parent.iter("testcase"))
    return totals | {"time": f"{seconds:.3f}"}


def _count(parent: Xml.Element, tag: str) -> str:
    return str(sum(1 for _ in parent.iter(tag)))
