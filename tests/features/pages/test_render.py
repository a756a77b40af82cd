"""Reports from records: golden files of every format, and what a format promises for any record."""

import copy
import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import jsonschema
import pytest
from junitparser import Error, Failure, JUnitXml, Skipped

from pipeline.features import pages
from pipeline.features.families.section import section as family_section
from pipeline.features.pages.excerpts import excerpts
from pipeline.features.schemas.record_schemas import DIALECT, report_schema
from pipeline.report.elements import MOST_ROWS
from pipeline.report.quoted_files import named_files, named_lines
from pipeline.report.render import Entry, render, render_all
from pipeline.store.source_line import SourceLine, parse_source_line
from tests.support import golden
from tests.support.bench import REPOSITORY

RECORDS = golden.records()
FULL = RECORDS["seq2seq-int8"]
REQUIRED = {"verdict", "package", "ok", "failures", "settings", "methods"}


def html(report, sources=None):
    page = render(report, sources)["report.html"].decode()
    return page.replace("<wbr>", "")  # where names may break


class Parsed(HTMLParser):
    """Collects the names of a page's elements and attributes."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes = [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [name for name, _ in attrs]


def junit_of(report):
    return JUnitXml.fromstring(render(report)["junit.xml"])


# Goldens and the schema


@pytest.fixture(scope="module")
def rendered():
    return golden.rendered()


def test_there_is_a_golden_file_of_each(rendered):
    assert {path.name for path in golden.GOLDEN.iterdir()} == rendered.keys()


@pytest.mark.parametrize("name", sorted(path.name for path in golden.GOLDEN.iterdir()))
def test_a_report_is_as_it_was(name, rendered):
    kept = (golden.GOLDEN / name).read_text(encoding="utf-8")
    assert rendered[name].decode() == kept, "if it is better now: python -m tests.support.golden"


@pytest.mark.parametrize("name", ["report", "events"])
def test_the_schemas_are_current(name):
    run = [sys.executable, "-m", "pte_pipeline.report.schema", name]
    printed = subprocess.run(run, capture_output=True, text=True, check=True, cwd=REPOSITORY)
    path = REPOSITORY / "docs" / "reference" / f"{name}.schema.json"
    assert path.read_text(encoding="utf-8") == printed.stdout, (
        f"run `python -m pte_pipeline.report.schema {name} > docs/reference/{name}.schema.json`"
    )


def test_the_schema_is_one_and_every_record_in_it_is_described():
    schema = report_schema()
    assert schema["$schema"] == DIALECT
    jsonschema.Draft202012Validator.check_schema(schema)
    assert all(part["description"] for part in schema["$defs"].values())
    assert schema["required"] == [*("package", "ok", "verdict", "failures", "settings", "methods")]


@pytest.mark.parametrize("name", RECORDS)
def test_records_are_valid(name):
    jsonschema.Draft202012Validator(report_schema()).validate(RECORDS[name])


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("methods", 0, "max_abs"), "infinite"),
        (("methods", 0, "runs"), None),
        (("gates", 0, "ok"), "yes"),
        (("contents", "segments", 0, "kind"), "other"),
        (("ok",), None),
    ],
)
def test_other_records_are_not(place, value):
    record = copy.deepcopy(FULL)
    part = record
    for step in place[:-1]:
        part = part[step]
    part[place[-1]] = value
    assert not jsonschema.Draft202012Validator(report_schema()).is_valid(record)


# Any record


@pytest.mark.parametrize("part", sorted(FULL.keys() - REQUIRED))
def test_every_optional_part_may_be_missing(part):
    assert render({name: value for name, value in FULL.items() if name != part})


@pytest.mark.parametrize("part", ["contents", "baseline", "gates"])
def test_optional_parts_may_be_none(part):
    assert render({**FULL, part: None})


def test_parts_of_parts_may_be_missing():
    record = copy.deepcopy(FULL)
    for counts in record["delegation"].values():
        for part in ("backends", "left", "boundary", "segments", "subgraphs"):
            del counts[part]
    for method in record["methods"]:
        del method["culprits"], method["latency"]
    for gate in record["gates"]:
        del gate["place"]
    page = html(record)
    assert "left to portable kernels" in page and "aten.native_layer_norm" in page


def test_equal_records_give_equal_bytes_in_any_process_and_need_no_torch():
    code = (
        "import hashlib, sys; from tests.support import golden; all = golden.rendered();"
        "print({n: hashlib.sha256(all[n]).hexdigest() for n in sorted(all)});"
        "sys.exit(bool({'torch', 'pydantic', 'yaml'} & sys.modules.keys()))"
    )
    hashes = [
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONPATH": str(REPOSITORY), "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert hashes[0] == hashes[1] and len(hashes[0]) > 500


def test_what_a_record_says_is_escaped():
    nasty = "<script>alert('x')</script> & \"quotes\""
    record = copy.deepcopy(FULL)
    record["package"] = nasty
    record["failures"] = [nasty]
    record["methods"][0]["method"] = nasty
    record["methods"][1]["culprits"][0]["line"] = f"{nasty}  # models/x.py:3, in f"
    record["delegation"] = {nasty: record["delegation"]["decode"]}
    record["contents"]["segments"][0]["name"] = nasty
    everything = render(record) | render_all([Entry(nasty, record), Entry("b", None, nasty)])
    for name in ("report.html", "index.html"):
        text = everything[name].decode()
        assert "alert" in text
        parsed = Parsed(text)
        assert parsed.tags.count("script") == 1  # the script of the tables
        assert not [name for name in parsed.attributes if "quotes" in name or "alert" in name]
    assert "&lt;script>" in everything["summary.md"].decode()


def test_a_page_needs_nothing_from_elsewhere():
    for text in (html(FULL, golden.sources()), render_all(golden.entries())["index.html"].decode()):
        assert not re.search(r"(src|href)=[\"'](https?:)?//", text)
        assert "@import" not in text and "url(" not in text
        assert not re.search(r"<(link|iframe|img)[^>]*(?!data:)href=\"(?!data:)", text)


def test_a_page_of_a_large_package_stays_below_a_megabyte():
    record = copy.deepcopy(FULL)
    segment = record["contents"]["segments"][3]
    record["contents"]["segments"] = [
        {**segment, "name": f"model.layers.{n}.attention.query.weight", "size": 5000 + n}
        for n in range(4000)
    ]
    record["contents"]["tensors"] = record["contents"]["tensors"] * 300
    run = record["methods"][1]["runs"][0]
    record["methods"][1]["runs"] = [{**run, "origin": f"example {n}"} for n in range(3000)]
    page = html(record)
    assert len(page.encode()) < 1_000_000
    assert f"the first {MOST_ROWS} of 4,000; report.json has all" in page
    assert "3880 more" in page  # segments drawn as one


def test_a_method_whose_errors_have_no_bound_is_counted_and_not_drawn():
    record = copy.deepcopy(FULL)
    record["methods"][1]["runs"][0]["outputs"][0]["max_abs"] = "inf"
    assert "1 output not drawn: no limit, or an unbounded error" in html(record)


def test_failures_stand_before_figures_and_the_verdict_before_both():
    page = html(FULL)
    places = [page.index(words) for words in ("failed</span>", "What failed, and", "Numerics</h2>")]
    assert places == sorted(places)
    first = FULL["failures"][0].partition(": ")[2]
    assert first.replace("[", "[") in page


def test_the_tasks_need_neither_templates_nor_charts():
    code = (
        "import sys, pipeline.cli.tasks;"
        "sys.exit(bool({'jinja2', 'markupsafe'} & sys.modules.keys()))"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY).returncode == 0


# Source lines


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "x + y  # models/a.py:3, in F.forward",
            SourceLine("models/a.py", 3, "F.forward", "x + y"),
        ),
        ("a  # b  # models/a.py:3, in f", SourceLine("models/a.py", 3, "f", "a  # b")),
        ("models/a.py:3, in F.forward", SourceLine("models/a.py", 3, "F.forward")),
        ("partition_configs/x y.yaml:12", SourceLine("partition_configs/x y.yaml", 12)),
        ("node relu_1", None),
        ("", None),
        (None, None),
    ],
)
def test_places_are_read_from_what_records_say(text, expected):
    assert parse_source_line(text) == expected


def test_every_link_within_a_page_leads_somewhere():
    page = html(FULL, golden.sources())
    targets = set(re.findall(r'href="#([^"]+)"', page))
    assert "models/seq2seq.py:34" in targets
    assert targets <= set(re.findall(r'id="([^"]+)"', page))


def test_lines_are_shown_with_those_around_them():
    shown = {file: (href, parts) for file, href, parts, _ in excerpts(FULL, golden.sources())}
    href, parts = shown["models/seq2seq.py"]
    assert href.startswith("../../models/seq2seq.py#L")
    first = parts[0]
    assert [number for number, _, _ in first] == list(range(first[0][0], first[-1][0] + 1))
    assert [number for part in parts for number, _, anchor in part if anchor] == sorted(
        {p.line for p in named_lines(FULL) if p.file == "models/seq2seq.py"}
    )


def test_of_a_file_that_cannot_be_read_the_quoted_lines_are_shown():
    shown = {file: parts for file, _, parts, _ in excerpts(FULL, {})}
    texts = [text for part in shown["models/seq2seq.py"] for _, text, _ in part]
    assert "x = self.norms[1](x + self.cross_attention(x, memory))" in texts


def test_files_outside_of_the_workspace_are_not_asked_for():
    record = {**FULL, "places": {"a": "/etc/passwd:1", "b": "../x:1", "c": "models/y.py:1"}}
    record["sources"] = dict.fromkeys(("/etc/passwd", "../x", "models/y.py"), "digest")
    assert "models/y.py" in named_files(record)
    assert not [name for name in named_files(record) if name.startswith(("/", ".."))]


# JUnit


def test_cases_of_a_package_that_failed():
    (suite,) = junit_of(FULL)
    assert (suite.name, suite.tests, suite.failures, suite.errors) == ("seq2seq-int8", 16, 4, 0)
    cases = {(case.classname, case.name): case for case in suite}
    (failure,) = cases["seq2seq-int8.decode", "quantization"].result
    assert failure.message == (
        "example 1, output[0]: absolute error 0.9113 at [0, 4, 211] (-1.204, must be -0.2927) "
        "exceeds 0.1529; SQNR 17.2 dB, must be at least 30 [PTE502]"
    )
    assert "models/seq2seq.py:32" in failure.text
    assert cases["seq2seq-int8.decode", "numerics"].time == FULL["seconds"]["decode"]
    failed = {key for key, case in cases.items() if case.result and not case.is_skipped}
    assert failed == {
        ("seq2seq-int8.decode", "quantization"),
        ("seq2seq-int8.decode", "min_delegated_nodes"),
        ("seq2seq-int8.decode", "max_sqnr_drop"),
        ("seq2seq-int8", "max_size_growth"),
    }


def test_each_failure_is_reported_once():
    texts = [
        sentence
        for case in next(iter(junit_of(FULL)))
        for result in case.result
        if isinstance(result, Failure)
        for sentence in result.text.splitlines()
    ]
    for sentence in FULL["failures"]:
        own = sentence.removeprefix("decode: ")
        assert len([text for text in texts if own in text]) == 1, sentence


def test_what_was_not_run_is_skipped():
    suite = next(iter(junit_of(RECORDS["add_sub"])))
    (skipped,) = [case for case in suite if case.is_skipped]
    assert skipped.name == "numerics"
    assert "no <device> & nothing" in skipped.result[0].message


@pytest.mark.parametrize("name", RECORDS)
def test_a_case_has_at_most_one_result_and_sums_are_right(name):
    suites = junit_of(RECORDS[name])
    for suite in suites:
        results = [case.result for case in suite]
        assert max(len(each) for each in results) <= 1
        kinds = [type(each[0]) for each in results if each]
        assert suite.tests == len(results)
        assert suite.failures == kinds.count(Failure)
        assert suite.skipped == kinds.count(Skipped)
        assert suite.errors == kinds.count(Error) == 0
    assert suites.tests == sum(suite.tests for suite in suites)


# For each element: its attributes (required ones in capitals) and its children.
_SCHEMA = {
    "testsuites": ("name time tests failures errors", "testsuite"),
    "testsuite": (
        "NAME TESTS FAILURES ERRORS group time skipped timestamp hostname id package file log url",
        "testsuite properties testcase system-out system-err",
    ),
    "properties": ("", "property"),
    "property": ("NAME VALUE", ""),
    "testcase": ("NAME time classname group", "skipped error failure system-out system-err"),
    "failure": ("type message", ""),
    "skipped": ("type message", ""),
    "system-out": ("", ""),
}


def test_it_is_valid_by_the_schema_of_jenkins():
    """According to junit-10.xsd of Jenkins' xUnit plugin."""
    root = ElementTree.fromstring(render_all(golden.entries())["junit.xml"])
    assert root.tag == "testsuites"
    for element in root.iter():
        attributes, children = (words.split() for words in _SCHEMA[element.tag])
        assert set(element.keys()) <= {name.lower() for name in attributes}, element.tag
        assert {name.lower() for name in attributes if name.isupper()} <= set(element.keys())
        assert {child.tag for child in element} <= set(children), element.tag
        assert re.fullmatch(r"[0-9]{0,3}(\.[0-9]*)?", element.get("time", "0"))
    for suite in root:
        tags = [child.tag for child in suite]
        assert tags == sorted(tags, key=["properties", "testcase"].index)


def test_a_package_that_could_not_be_built_is_a_failure():
    suites = JUnitXml.fromstring(render_all(golden.entries())["junit.xml"])
    broken = next(suite for suite in suites if suite.name == "tcn-vulkan")
    assert (broken.tests, broken.failures) == (1, 1)


def test_what_xml_cannot_hold_is_escaped():
    record = {**FULL, "failures": ["bad \x00 byte \x1b[31m and \ud800 half"]}
    content = render(record)["junit.xml"]
    assert JUnitXml.fromstring(content)
    assert rb"bad \x00 byte \x1b[31m and \ud800 half" in content


# All packages


def test_what_failed_comes_first_everywhere():
    made = render_all(golden.entries(), golden.timeline())
    page, summary = made["index.html"].decode(), made["summary.md"].decode()
    page = page.replace("<wbr>", "")
    for text in (page[page.index('id="packages"') :], summary):
        places = [text.index(name) for name in ("tcn-vulkan", "seq2seq-int8", "wav2vec", "vision")]
        assert places == sorted(places)
    counts = "1 failed, 1 not built, 1 not run, 1 not validated, 1 passed"
    assert summary.startswith(f"# FAILED: 5 packages: {counts}\n")


def test_a_summary_fits_where_github_takes_it():
    record = {**FULL, "failures": ["x" * 10_000] * 50}
    entries = [Entry(f"package-{n}", {**record, "package": f"package-{n}"}) for n in range(800)]
    from pipeline.features.pages.markdown import markdown_summary

    text = markdown_summary(entries)
    assert len(text.encode()) < 1 << 20
    assert all(f"`package-{n}`" in text for n in range(800))
    assert "and 44 more in `build/package-0/report.md`" in text


def test_no_packages_and_no_timeline():
    made = render_all([])
    assert b"no packages" in made["index.html"] and b"no packages" in made["summary.md"]
    assert JUnitXml.fromstring(made["junit.xml"]).tests == 0


# Style


def _variables(css):
    return dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", css))


def _contrast(one, other):
    """Return the contrast ratio, as WCAG 2 defines it."""

    def luminance(colour):
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    lighter, darker = sorted((luminance(one), luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize("mode", [0, 1])
def test_texts_can_be_read_in_light_and_dark_mode(mode):
    style = Path(pages.__file__).parent / "templates" / "style.css"
    css = style.read_text(encoding="utf-8").partition("* {")[0]
    variables = _variables(css.split("@media (prefers-color-scheme: dark)")[mode])
    pairs = [
        *((name, paper) for name in ("ink", "soft", "link") for paper in ("paper", "panel")),
        *((name, "paper") for name in ("good", "bad")),
        ("good", "good-paper"),
        ("bad", "bad-paper"),
        ("ink", "mark"),
        *(("on-colour", f"c{number}") for number in range(8)),
    ]
    for text, paper in pairs:
        assert _contrast(variables[text], variables[paper]) >= 4.5, (text, paper)


def test_records_hold_no_more_than_json():
    for record in RECORDS.values():
        json.dumps(record, allow_nan=False)


def test_bytes_that_stay_in_payloads_of_a_family_are_told_by_backend():
    """A payload that two methods share counts once."""

    def payload(digest, backend, size):
        return {"digest": digest, "backend": backend, "size": size}

    core_ml, other = payload("a", "CoreMLBackend", 25_000), payload("b", "XnnpackBackend", 1_000)
    methods = {"run": {"delegates": [core_ml, other]}, "again": {"delegates": [core_ml]}}
    family = {"name": "asr", "base": None, "packages": {"asr": {"asr.pte": ("c", 26_000)}}}
    parts = family_section({"family": family, "contents": {"methods": methods}}).parts
    assert (
        "Payloads of delegates stay in each package, with all weights inside them: "
        "CoreMLBackend 25.0 kB, XnnpackBackend 1.0 kB." in parts
    )
    alone = family_section({"family": family, "contents": None}).parts
    assert not any("Payloads" in part for part in alone if isinstance(part, str))


def test_a_family_is_drawn_on_the_page_of_a_package_and_of_all():
    def files(number):
        return {"own.pte": [f"{number:064x}", 100 * number], "base.ptd": ["d" * 64, 10_000]}

    packages = {f"asr-{number}": files(number) for number in range(1, 31)}
    family = {"name": "asr", "base": "asr-1", "packages": packages}
    reports = [{**FULL, "package": each, "family": family} for each in ("asr-1", "asr-30")]
    page = html(reports[1])
    assert "30 packages of 346.5 kB apart, 56.5 kB together: sharing saves 83.7 %." in page
    assert "Only files of asr-1 are shared, so another package changes none." in page
    assert "The 24 of 30 that add most." in page and "asr-7: base.ptd 10.0 kB" in page
    assert "asr-6: base.ptd" not in page and 'aria-label="Files of 30 packages: ' in page
    entries = [Entry(each["package"], each) for each in reports]
    index = render_all(entries)["index.html"].decode()
    assert "What each package of asr loads." in index and 'href="asr-30/report.html"' in index
