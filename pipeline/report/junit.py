"""Reports as JUnit XML, as CI servers read it: a suite for each package, a case for each check.

The standard library writes it: the format is a page of elements, and libraries for it are good at
reading (the tests read with one). It is valid by the schema of Jenkins' xUnit plugin, junit-10.xsd,
and follows what others ask for beside: properties before cases, and at most one result of a case.
Ant's schema also wants the host and the hour, which no two builds share.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple
from xml.etree import ElementTree as Xml

from pipeline.report.elements import Json
from pipeline.report.sections.failures import describe_failure, package_failures

# What XML 1.0 can't hold, not even escaped.
_NO_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class Case(NamedTuple):
    """One check. `classname` is what CI servers group by; `failures` are sentences; `skipped` says
    why it was not run; `output` is further text; `seconds` is wall time."""

    classname: str
    name: str
    failures: Sequence[str] = ()
    skipped: str = ""
    output: str = ""
    seconds: float = 0.0


def junit(reports: Iterable[Json], not_built: Mapping[str, str] | None = None) -> bytes:
    """Return the suites of packages as XML, sorted by name.

    Args:
        not_built: the errors of packages that could not be built, by package.
    """
    suites = {str(r["package"]): (list(_cases(r)), _properties(r)) for r in reports}
    for package, error in (not_built or {}).items():
        suites[package] = [Case(package, "lowered", [error])], {}
    totals = _totals([case for cases, _ in suites.values() for case in cases])
    del totals["skipped"]  # Jenkins' schema knows that of suites alone
    root = Xml.Element("testsuites", {"name": "pte-pipeline", **totals})
    for package, (cases, properties) in sorted(suites.items()):
        suite = Xml.SubElement(root, "testsuite", {"name": package, **_totals(cases)})
        if properties:
            holder = Xml.SubElement(suite, "properties")
            for name, value in properties.items():
                Xml.SubElement(holder, "property", {"name": name, "value": value})
        for case in cases:
            _add_case(suite, case)
    Xml.indent(root)
    text = _NO_XML.sub("\ufffd", Xml.tostring(root, encoding="unicode"))
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{text}\n'.encode()


def _cases(report: Json) -> Iterator[Case]:
    """Yield the cases of each method, of the gates, and of what fails of the package itself."""
    package = str(report["package"])
    for method in report["methods"]:
        seconds = report.get("seconds", {}).get(method["method"], 0.0)
        yield from _method_cases(f"{package}.{method['method']}", method, seconds)
    for gate in report.get("gates") or ():
        classname = f"{package}.{gate['method']}" if gate["method"] else package
        failures = [] if gate["ok"] else [gate["sentence"]]
        output = f"{gate['sentence']}\n{gate.get('place', '')}".strip()
        yield Case(classname, gate["gate"], failures, output=output)
    yield Case(package, "package", package_failures(report))


def _method_cases(classname: str, method: Json, seconds: float) -> Iterator[Case]:
    """Yield that a method has the interface of its source, and that it computes the same."""
    own = [failure["what"] for failure in method["failures"] if not failure["inputs"]]
    yield Case(classname, "interface", own)
    wrong = [describe_failure(failure) for failure in method["failures"] if failure["inputs"]]
    for culprit in method.get("culprits", ()) if wrong else ():
        where = ", ".join(filter(None, (culprit["operator"], culprit["module"])))
        line = f"\n  {culprit['line']}" if culprit["line"] else ""
        wrong.append(f"{where}: {culprit['what']}{line}")
    if method["runs"] or wrong:
        skips = (f"skipped {skip['origin']}: {skip['reason']}" for skip in method["skipped"])
        yield Case(classname, "numerics", wrong, output="\n".join(skips), seconds=seconds)
    elif not own:
        yield Case(classname, "numerics", skipped=method["not_run"] or "nothing to run it on")


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


def _add_case(suite: Xml.Element, case: Case) -> None:
    time = f"{case.seconds:.3f}"
    attributes = {"classname": case.classname, "name": case.name, "time": time}
    element = Xml.SubElement(suite, "testcase", attributes)
    if case.failures:
        first = case.failures[0].partition("\n")[0]
        failure = Xml.SubElement(element, "failure", {"message": first, "type": case.name})
        failure.text = "\n".join(case.failures)
    elif case.skipped:
        Xml.SubElement(element, "skipped", {"message": case.skipped})
    if case.output:
        Xml.SubElement(element, "system-out").text = case.output


def _totals(cases: Sequence[Case]) -> dict[str, str]:
    return {
        "tests": str(len(cases)),
        "failures": str(sum(bool(case.failures) for case in cases)),
        "errors": "0",
        "skipped": str(sum(bool(case.skipped) and not case.failures for case in cases)),
        "time": f"{sum(case.seconds for case in cases):.3f}",
    }
