"""The modules of methods, and what runs the operators of each."""

import copy
import json
import re

import pytest

from pipeline.features.modules.pages import render_modules, section
from pipeline.features.modules.tree import delegated_share, make_tree
from tests.features.pages.test_method_list import many
from tests.support import golden


def call(module, operator="aten.linear.default", runs_on="XnnpackBackend", line="", count=1):
    return {
        "module": module,
        "operator": operator,
        "runs_on": runs_on,
        "line": line,
        "count": count,
    }


CALLS = [
    call("", "aten.sym_size.int", "folded"),
    call("net.layers.0.fc", line="y = self.fc(x)  # models/net.py:7, in Layer.forward"),
    call("net.layers.0", "aten.add.Tensor", "kernels", "y + x  # models/net.py:8, in f", 2),
    call("net.layers.1.fc", count=3),
]
TENSORS = [
    {"name": "net.layers.0.fc.weight", "size": 100, "methods": ["run"]},
    {"name": "net.layers.1.fc.weight, tied.weight", "size": 10, "methods": ["run", "other"]},
    {"name": "net.layers.1.fc.bias", "size": 1000, "methods": ["other"]},
    {"name": "", "size": 5, "methods": ["run"]},
]
TIMES = {"": 0.5, "net.layers": 0.25, "net.layers.1.fc": 2.0, "net.layers.1.fc.gone": 1.0}
CULPRIT = {"module": "net.layers.0", "error": {"max_abs": 0.25}}


def tree(most_rows=100, **changes):
    method = {"method": "run", "modules": CALLS, **changes}
    return make_tree(method, TENSORS, TIMES, most_rows)


def test_a_tree_sums_calls_bytes_times_and_errors_of_what_is_below():
    root = tree(culprits=[CULPRIT])
    (layers,) = root["children"]
    times = [module["time"] for module in (root, layers, *layers["children"])]
    assert times == [3.75, 3.25, 0.0, 3.0]
    assert root["runners"] == {"folded": 1, "XnnpackBackend": 4, "kernels": 2}
    assert root["size"] == 115
    (layers,) = root["children"]
    assert (layers["name"], layers["size"]) == ("net.layers", 110)  # net only wraps them
    first, second = layers["children"]
    assert (first["name"], first["size"], first["error"]) == ("0", 100, {"max_abs": 0.25})
    assert [(each["operator"], each["count"]) for each in first["calls"]] == [
        ("aten.add.Tensor", 2)
    ]
    assert second["name"] == "1.fc" and second["runners"] == {"XnnpackBackend": 3}
    assert delegated_share(root["runners"]) == pytest.approx(4 / 6)
    assert delegated_share({"folded": 3}) is None


def test_where_there_is_no_room_deep_modules_are_part_of_those_around_them():
    root = tree(most_rows=6)
    (net,) = root["children"]
    assert net["name"] == "net" or not net["children"]
    assert root["runners"] == tree()["runners"]
    assert all(each["line"] == "" for each in net["calls"])


def record(calls):
    made = copy.deepcopy(golden.records()["vision"])
    made["sources"] = {"models/net.py": "0" * 64}
    for method in made["methods"]:
        method["modules"] = calls
    return made


def test_a_page_escapes_names_and_links_lines_of_the_workspace():
    calls = [
        call("a.<b>", line="<x>  # models/net.py:7, in f"),
        call("a", line="y  # torch/passes.py:3, in g"),
    ]
    page = render_modules(record(calls), {}, {})["modules.html"].decode()
    assert "&lt;b&gt;" in page and "<b>" not in page.replace("<b>error", "")
    assert set(re.findall('href="([^"]+#L[0-9]+)"', page)) == {"../../models/net.py#L7"}
    assert 'id="method-classify"' in page
    (table,) = section(record(calls)).parts
    assert table.rows[0]["method"].href == f"modules.html#method-{table.rows[0]['method'].text}"


def test_a_page_shows_the_times_of_the_latest_profile():
    report = record(CALLS)
    assert b" ms" not in render_modules(report, {}, {})["modules.html"]
    report["profiles"] = {"classify": {"modules": TIMES}, "features": {}}
    page = render_modules(report, {}, {})["modules.html"].decode()
    assert "3.75 ms" in page and "3.25 ms" in page


def test_a_package_of_an_older_version_has_a_page_without_modules():
    report = golden.records()["add_sub"]
    assert b"No method was validated" in render_modules(report, {}, {})["modules.html"]
    assert section(report).parts == []


def test_a_page_of_200_methods_is_bounded():
    report = many(200)
    for method in report["methods"]:
        method["modules"] = [
            call(
                f"net.layers.{number}.fc",
                f"aten.op{number % 7}.default",
                line=f"x  # m.py:{number}",
            )
            for number in range(400)
        ]
    page = render_modules(report, {}, {})["modules.html"]
    assert len(page) < 1_500_000


def test_every_call_of_a_real_package_is_in_a_module_with_what_runs_it(built):
    """Covers a method with a delegate and one with portable kernels only."""
    report = json.loads(built.bytes_of("pair", "report.json"))
    calls = {each["method"]: each["modules"] for each in report["methods"] if "modules" in each}
    assert {each["runs_on"] for each in calls["decode"]} <= {"XnnpackBackend", "folded"}
    assert {each["runs_on"] for each in calls["encode"]} <= {"kernels", "folded"}
    assert all("models/pair.py:" in each["line"] for each in calls["decode"])
    page = built.bytes_of("pair", "modules.html").decode()
    assert "aten." in page and "models/pair.py" in page
