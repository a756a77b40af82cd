"""Reports as JUnit XML, as CI servers read it: a suite for each package, a case for each check.

Written with the standard library: the format is a page of elements, and what libraries for it are
good at is reading (the tests read with one). It is valid by the schema of Jenkins' xUnit plugin,
junit-10.xsd, and what others ask for beside is heeded: properties before cases, and at most one
result of a case. Ant's schema also wants the host and the hour, by which no two builds are equal.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from xml.etree import ElementTree as Xml

Json = Mapping[str, Any]

# What XML 1.0 can't hold, not even escaped.
_NO_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class Case(NamedTuple):
    """`failures` are sentences; `skipped` is why it was not run; `seconds` of wall time."""

    of: str
    name: str
    failures: Sequence[str] = ()
    skipped: str = ""
    told: str = ""
    seconds: float = 0.0


def junit(reports: Iterable[Json], not_built: Mapping[str, str] | None = None) -> bytes:
    """The suites of packages, by name.

    Args:
        not_built: packages that there is nothing to validate of, each with its error.
    """
    suites = {str(report["package"]): list(_cases(report)) for report in reports}
    about = {str(report["package"]): _properties(report) for report in reports}
    for package, error in (not_built or {}).items():
        suites[package] = [Case(package, "lowered", [error])]
    totals = _totals(_all(suites.values()))
    del totals["skipped"]  # Jenkins' schema knows that of suites alone
    root = Xml.Element("testsuites", {"name": "pte-pipeline", **totals})
    for package, cases in sorted(suites.items()):
        root.append(_suite(package, cases, about.get(package, {})))
    Xml.indent(root)
    text = Xml.tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{text}\n'.encode()


def _all(suites: Iterable[Sequence[Case]]) -> list[Case]:
    return [case for cases in suites for case in cases]


def _cases(report: Json) -> Iterator[Case]:
    """Of each method, that it is what its source is, and that it computes the same; the gates; and
    what fails of the package itself."""
    package = str(report["package"])
    told: set[str] = set()
    for method in report["methods"]:
        told.update(f"{method['method']}: {_place(f)}{f['what']}" for f in method["failures"])
        yield from _cases_of(package, method, report.get("seconds", {}))
    for gate in report.get("gates") or ():
        told.add(gate["sentence"])
        failures = [] if gate["ok"] else [gate["sentence"]]
        text = f"{gate['sentence']}\n{gate.get('place', '')}".strip()
        name = str(gate["gate"])
        yield Case(_of(package, gate["method"]), name, failures, told=text)
    rest = [sentence for sentence in report["failures"] if sentence not in told]
    yield Case(package, "package", rest)


def _cases_of(package: str, method: Json, seconds: Mapping[str, float]) -> Iterator[Case]:
    of, name = _of(package, method["method"]), method["method"]
    own = [failure for failure in method["failures"] if not failure["inputs"]]
    yield Case(of, "interface", [failure["what"] for failure in own])
    wrong = [f"{_place(f)}{f['what']}" for f in method["failures"] if f["inputs"]]
    wrong += [_culprit(culprit) for culprit in method.get("culprits", ()) if wrong]
    if method["runs"] or wrong:
        told = "\n".join(
            f"skipped {skip['origin']}: {skip['reason']}" for skip in method["skipped"]
        )
        yield Case(of, "numerics", wrong, told=told, seconds=seconds.get(name, 0.0))
    elif not own:
        yield Case(of, "numerics", skipped=method["not_run"] or "nothing to run it on")


def _place(failure: Json) -> str:
    place = ", ".join(part for part in (failure["inputs"], failure["output"]) if part)
    return f"{place}: " if place else ""


def _culprit(culprit: Json) -> str:
    where = ", ".join(part for part in (culprit["operator"], culprit["module"]) if part)
    line = f"\n  {culprit['line']}" if culprit["line"] else ""
    return f"{where}: {culprit['what']}{line}"


def _of(package: str, method: str | None) -> str:
    """The class name of a case, by which CI servers group."""
    return f"{package}.{method}" if method else package


def _properties(report: Json) -> dict[str, str]:
    facts = {name: str(report[name]) for name in ("model", "target") if report.get(name)}
    sizes = {f"size:{name}": str(size) for name, size in sorted(report.get("sizes", {}).items())}
    counts = sorted(report.get("delegation", {}).items())
    shares = {
        f"delegated_nodes:{name}": f"{each['delegated_nodes']}/{each['nodes']}"
        for name, each in counts
    }
    digests = {f"digest:{n}": digest for n, digest in sorted(report.get("files", {}).items())}
    return facts | sizes | shares | digests


def _suite(package: str, cases: Sequence[Case], properties: Mapping[str, str]) -> Xml.Element:
    suite = Xml.Element("testsuite", {"name": _clean(package), **_totals(cases)})
    if properties:
        holder = Xml.SubElement(suite, "properties")
        for name, value in properties.items():
            Xml.SubElement(holder, "property", {"name": _clean(name), "value": _clean(value)})
    for case in cases:
        suite.append(_case(case))
    return suite


def _case(case: Case) -> Xml.Element:
    time = f"{case.seconds:.3f}"
    names = {"classname": _clean(case.of), "name": _clean(case.name), "time": time}
    element = Xml.Element("testcase", names)
    if case.failures:
        first = _clean(case.failures[0]).partition("\n")[0]
        failure = Xml.SubElement(element, "failure", {"message": first, "type": case.name})
        failure.text = _clean("\n".join(case.failures))
    elif case.skipped:
        Xml.SubElement(element, "skipped", {"message": _clean(case.skipped)})
    if case.told:
        Xml.SubElement(element, "system-out").text = _clean(case.told)
    return element


def _totals(cases: Sequence[Case]) -> dict[str, str]:
    counts = {
        "tests": len(cases),
        "failures": sum(bool(case.failures) for case in cases),
        "errors": 0,
        "skipped": sum(bool(case.skipped) and not case.failures for case in cases),
    }
    time = f"{sum(case.seconds for case in cases):.3f}"
    return {name: str(number) for name, number in counts.items()} | {"time": time}


def _clean(text: str) -> str:
    return _NO_XML.sub("\ufffd", text)
