"""What another backend would change: rows per kind of operator, and the section of the report."""

import json
from types import SimpleNamespace

import pytest

from pipeline.features.sensitivity.against_table import describe_against
from pipeline.features.sensitivity.operator_kinds import count_delegated, is_left, leave_operator
from pipeline.features.sensitivity.planning import AGAINST_FILE, FIELD, SensitivityPlanning
from pipeline.features.sensitivity.section import section
from pipeline.report.elements import DataTable
from pipeline.store.digest import hash_file

TARGETS = {"AddConfig": "add.Tensor", "ReLUConfig": "relu.default"}
SPREAD = {"median": 0.5, "low": 0.4, "high": 0.6}
EVEN = {"median": 0.1, "low": -0.1, "high": 0.3}
BUILD = {"bytes": -388, "ms": SPREAD, "sqnr_db": 120.0}
METHOD = {
    "base_ms": 0.22,
    "sqnr_db": 119.0,
    "calls": 4,
    "metric_value": None,
    "groups": [{"modules": ["stem"], **BUILD}],
    "operators": [{"operator": "aten.add.Tensor", "count": 3, **BUILD, "ms": EVEN}],
    "untried": ["aten.relu.default"],
    "complete": True,
    "builds": 2,
    "one_by_one": 7,
    "proposed": [],
    "settings": {},
}
AGAINST = {"backend": "portable", "metric": "", "methods": {"forward": METHOD}}


@pytest.mark.parametrize(
    ("partitioners", "expected"),
    [
        (["xnnpack"], [{"xnnpack": {"configs": ["ReLUConfig"]}}]),
        ([{"xnnpack": {"configs": ["AddConfig"]}}], None),  # it would take no operator
        ([{"xnnpack": {"configs": ["ReLUConfig"]}}], None),  # it takes none of them
        (
            [{"openvino": {"device": "CPU", "op_types_to_skip": ["aten.mul.Tensor"]}}],
            [
                {
                    "openvino": {
                        "device": "CPU",
                        "op_types_to_skip": ["aten.mul.Tensor", "aten.add.Tensor"],
                    }
                }
            ],
        ),
        (["vulkan", "ethos_u"], None),
    ],
)
def test_partitioners_leave_a_kind_of_operator(partitioners, expected):
    assert leave_operator(partitioners, "aten.add.Tensor", TARGETS) == expected


def test_delegated_kinds_are_counted():
    taken = {"aten.relu": 2, "aten.add.Tensor": 3, "quantized_decomposed.quantize_per_tensor": 9}
    segments = [
        {"backend": "XnnpackBackend", "operators": taken},
        {"backend": None, "operators": {"aten.sin": 4}},
    ]
    manifest = {"methods": {"forward": {"delegation": {"segments": segments}}}}
    counts = count_delegated(manifest, "forward")
    assert list(counts.items()) == [("aten.add.Tensor", 3), ("aten.relu.default", 2)]


def test_a_kind_that_is_fused_is_not_left():
    linear, before = "aten.linear.default", {"aten.linear.default": 5, "aten.relu.default": 5}
    assert not is_left("aten.relu.default", before, before)
    assert is_left(linear, before, {"aten.permute_copy.default": 5, "aten.relu.default": 5})
    assert not is_left(linear, before, {"aten.addmm.default": 5})  # a linear layer becomes these


def test_kinds_of_operators_are_printed():
    lines = list(describe_against({"package": "vision", "against": AGAINST}))
    (row,) = (line for line in lines if "aten.add.Tensor (3)" in line)
    assert row.split()[2:] == ["-388", "+0.1", "(even)", "120.0", "dB"]
    assert "  not left to portable: aten.relu.default" in lines


def test_the_report_shows_other_backends(tmp_path):
    files = {"vision.pte": "d1"}
    path = tmp_path / AGAINST_FILE
    path.write_text(json.dumps({"files": files, "methods": {}, "against": AGAINST}))
    digests = SimpleNamespace(hash=hash_file)
    workspace = SimpleNamespace(package=lambda name: tmp_path, file_digests=digests)
    planning = SensitivityPlanning(SimpleNamespace(workspace=workspace))
    assert planning.held_to("vision", files, None) == {FIELD: {path.name: hash_file(path)}}
    assert planning.add_to_record("vision", {"vision.pte": "d2"}) == {}  # another build
    _, table = section(planning.add_to_record("vision", files)).parts
    assert isinstance(table, DataTable) and table.title == "What portable would change"
    cells = [[cell.text for cell in row][1:5] for row in table.cells]
    assert cells == [
        ["stem", "-388", "+0.5 ms", "120.0 dB"],
        ["aten.add.Tensor (3)", "-388", "+0.1 ms", "120.0 dB"],
        ["(as it is)", "", "0.22 ms", "119.0 dB"],
    ]
