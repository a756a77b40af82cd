"""Reports as JUnit XML, as CI servers read it: a suite for each package, a case for each check.

It is valid by the schema of Jenkins' xUnit plugin, junit-10.xsd, and follows what others ask for
beside: properties before cases, and at most one result of a case. Ant's schema also wants the host
and the hour, which no two builds share.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from xml.etree import ElementTree as Xml

from pipeline.report.elements import Json
from pipeline.report.records import ALL, UNASKED, is_unchecked
from pipeline.report.sections.failures import failed_by_check, package_failures
from pipeline.report.sections.reference import describe_reference
from pipeline.report.verdicts import PASSED
from pipeline.store.visible import visible


def junit(reports: Iterable[Json], not_built: Mapping[str, str] | None = None) -> bytes:
    """Return the suites of packages as XML, sorted by name.

    Args:
        not_built: the errors of packages that could not be built, by package.
    """
    built = {str(report["package"]): report for report in reports}
    errors = not_built or {}
    root = Xml.Element("testsuites", {"name": "pte-pipeline"})
    for package in sorted(built.keys() | errors.keys()):
        suite = Xml.SubElement(root, "testsuite", {"name": package})
        if package in errors:
            _add_case(suite, package, "lowered", [errors[package]])
        else:
            _add_report(suite, package, built[package])
        suite.attrib |= _totals(suite)
    root.attrib |= _totals(root)
    del root.attrib["skipped"]  # Jenkins' schema knows that of suites alone
    Xml.indent(root)
    text = visible(Xml.tostring(root, encoding="unicode"))  # all that XML 1.0 can't hold too
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{text}\n'.encode()


def _add_report(suite: Xml.Element, package: str, report: Json) -> None:
    """Add the cases of each method, of the gates, and of what fails of the package itself."""
    if properties := _properties(report):
        holder = Xml.SubElement(suite, "properties")
        for name, value in properties.items():
            Xml.SubElement(holder, "property", {"name": name, "value": value})
    for method in report["methods"]:
        seconds = report.get("seconds", {}).get(method["method"], 0.0)
        _add_method(suite, f"{package}.{method['method']}", method, seconds)
    for gate in report.get("gates") or ():
        classname = f"{package}.{gate['method']}" if gate["method"] else package
        failures = [] if gate["ok"] else [gate["sentence"]]
        skipped = gate["sentence"] or "not checked" if is_unchecked(gate) else ""
        output = f"{gate['sentence']}\n{gate.get('place', '')}".strip()
        _add_case(suite, classname, gate["gate"], failures, skipped, output)
    _add_case(suite, package, "package", package_failures(report))


def _add_method(suite: Xml.Element, classname: str, method: Json, seconds: float) -> None:
    """Add that a method has the interface of its source, that it computes the same, that its
    quantization is good enough, and that its export is what its reference is."""
    failed = failed_by_check(method)
    own, wrong = failed.get("interface", []), failed.get("numerics", [])
    left_out = method.get("left_out", ())
    unseen = "validate.budget was spent" if ALL in left_out else ""
    unseen = UNASKED if UNASKED in left_out else unseen
    _add_case(suite, classname, "interface", own, skipped=unseen)
    if lacking := failed.get("source", []):
        _add_case(suite, classname, "source", lacking)
    wrong += _describe_culprits(method) if wrong else []
    if method["runs"] or method.get("random") or wrong:
        skips = [f"skipped {skip['origin']}: {skip['reason']}" for skip in method["skipped"]]
        skips += [f"left out {each}: validate.budget" for each in left_out]
        unjudged = method["verdict"] == "not judged"
        skipped = f"not judged: {method.get('verdict_reason', '')}" if unjudged else ""
        _add_case(suite, classname, "numerics", wrong, skipped, "\n".join(skips), seconds)
    elif not own and not lacking:
        why = method["not_run"] or unseen or "nothing to run it on"
        _add_case(suite, classname, "numerics", skipped=why)
    if quantization := method.get("quantization"):
        lost = failed.get("quantization", [])
        lost += _describe_culprits(method) if lost and not wrong else []
        verdict, why = quantization["verdict"], quantization["reason"]
        skipped = f"{verdict}: {why}" if verdict in ("not judged", "not run") else ""
        _add_case(suite, classname, "quantization", lost, skipped, why)
    if reference := method.get("reference"):
        departs, why = failed.get("reference", []), describe_reference(reference)
        skipped = "" if reference["verdict"] == PASSED else f"{reference['verdict']}: {why}"
        _add_case(suite, classname, "reference", departs, skipped, why)


def _describe_culprits(method: Json) -> list[str]:
    """Return a text for each operator that a method fails by, then what could not be found out."""
    texts = []
    for culprit in method.get("culprits", ()):
        where = ", ".join(filter(None, (culprit["operator"], culprit["module"])))
        line = f"\n  {culprit['line']}" if culprit["line"] else ""
        texts.append(f"{where}: {culprit['what']}{line}")
    return [*texts, *(method.get("culprit_notes") or ())]


def _properties(report: Json) -> dict[str, str]:
    counts = sorted(report.get("delegation", {}).items())
    shares = {name: f"{each['delegated_nodes']}/{each['nodes']}" for name, each in counts}
    groups = {
        "size": sorted(report.get("sizes", {}).items()),
        "delegated_nodes": shares.items(),
        "digest": sorted(report.get("files", {}).items()),
    }
    facts = {name: str(report[name]) for name in ("model", "target") if report.get(name)}
    return facts | {f"{key}:{name}": str(v) for key, own in groups.items() for name, v in own}


def _add_case(
    suite: Xml.Element,
    classname: str,
    name: str,
    failures: Sequence[str] = (),
    skipped: str = "",
    output: str = "",
    seconds: float = 0.0,
) -> None:
    """Add one check. CI servers group by `classname`; `skipped` says why it was not run."""
    attributes = {"classname": classname, "name": name, "time": f"{seconds:.3f}"}
    element = Xml.SubElement(suite, "testcase", attributes)
    if failures:
        first = failures[0].partition("\n")[0]
        failure = Xml.SubElement(element, "failure", {"message": first, "type": name})
        failure.text = "\n".join(failures)
    elif skipped:
        Xml.SubElement(element, "skipped", {"message": skipped})
    if output:
        Xml.SubElement(element, "system-out").text = output


def _totals(parent: Xml.Element) -> dict[str, str]:
    seconds = (float(case.attrib["time"]) for case in parent.iter("testcase"))
    numbers = {"tests": "testcase", "failures": "failure", "errors": "error", "skipped": "skipped"}
    counts = {name: str(len(list(parent.iter(tag)))) for name, tag in numbers.items()}
    return counts | {"time": f"{sum(seconds):.3f}"}
