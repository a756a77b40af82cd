"""A config request that isn't met is an error, unless the config allows it."""

import pytest

from pipeline.features.delegation_drops.last_build import _compare
from pipeline.features.pages.overview import drops_section
from pipeline.features.unmet.problems import find_unmet
from pipeline.report.packages import Entry
from tests.support.bench import bench_of

REFUSED = {"operator": "aten.cumsum.default", "calls": 2, "reason": "no kernel"}
TAKES = {"partitioner": "xnnpack", "offered": 4, "taken": 3, "refusals": []}
IDLE = {"partitioner": "coreml", "offered": 4, "taken": 0, "refusals": [REFUSED]}
UNASKED = {**IDLE, "offered": 0, "refusals": []}
SOME = {"bytes": 64, "quantized": 32}
NONE = {"bytes": 64, "quantized": 0}


def find(partitioners, quantization=None, delegated_nodes=0, **lowering):
    offered = sum(uptake["offered"] for uptake in partitioners)
    delegation = {"partitioners": partitioners, "nodes": offered}
    delegation["delegated_nodes"] = delegated_nodes
    method = {"delegation": delegation, "quantization": quantization}
    return [str(problem) for problem in find_unmet({"f": method}, {"f": lowering})]


def facts(conversions=0, weights=NONE):
    left = [{"name": "conv.weight", "bytes": 64, "why": "vulkan quantizes no conv2d"}]
    compute = {"multiplications": 8, "quantized": 0}
    given = {"quantizer": "vulkan", "conversions": conversions, "left_float": left}
    return {**given, "weights": weights, "compute": compute}


def test_a_partitioner_that_takes_nothing_is_an_error():
    assert find([IDLE]) == [
        "methods.f.partitioners[0]: coreml supports none of its operators (2 of "
        "aten.cumsum.default: no kernel); `partitioners: []` is for portable operators only, or "
        "set `allow_none: true` in methods.f"
    ]
    assert find([IDLE], delegated_nodes=2)[0].startswith(
        "methods.f.partitioners[0]: coreml supports none of its operators that compute (2 of "
        "aten.cum"
    )
    assert find([IDLE], allow_none=True) == []
    assert find([TAKES]) == []


def test_one_before_another_is_not_a_fallback_and_one_after_it_is():
    (line,) = find([IDLE, TAKES])
    assert line.startswith("methods.f.partitioners[0]: coreml") and "leave it out" in line
    assert find([TAKES, IDLE]) == find([TAKES, UNASKED]) == []
    assert len(find([IDLE, IDLE])) == 2
    assert len(find([IDLE, TAKES, IDLE])) == 1


def test_where_there_is_nothing_to_take_nothing_is_missed():
    assert find([UNASKED]) == []
    assert find([UNASKED], facts()) == []


def test_a_quantizer_that_quantizes_nothing_is_an_error():
    (line,) = find([TAKES], facts())
    assert line == (
        "methods.f.quantize: vulkan quantizes nothing (conv.weight: vulkan quantizes no conv2d); "
        "leave it out, name a quantizer that takes these operators, or set `allow_none: true` in "
        "methods.f"
    )
    assert find([TAKES], facts(), allow_none=True) == []
    assert find([TAKES], facts(conversions=3)) == []  # activations only
    assert find([TAKES], facts(weights=SOME)) == []  # embeddings, which are lookups


def counts(nodes, delegated):
    return {"delegation": {"nodes": nodes, "delegated_nodes": delegated}}


def test_less_than_in_the_last_build_is_found():
    last = {"f": counts(20, 19), "g": counts(4, 4), "gone": counts(1, 1), "h": counts(0, 0)}
    built = {"f": counts(20, 16), "g": counts(8, 8), "new": counts(1, 0), "h": counts(2, 0)}
    assert _compare(last, built) == {"f": (0.95, 0.8)}
    (table,) = drops_section([Entry("p", drops={"f": (0.95, 0.8)}), Entry("q")]).parts
    (row,) = table.cells
    assert [cell.text for cell in row] == ["p", "f", "80.0 %", "95.0 %"]


@pytest.mark.slow
def test_packages_are_refused_and_drops_told(tmp_path):
    bench = bench_of("unmet", tmp_path)
    config = "partition_configs/unmet.yaml"
    assert bench.doit() == 1
    for what in (
        "methods.nothing.partitioners[0]: xnnpack supports none of its operators",
        "its partitioner doesn't support operators of this type",
        "methods.nothing.quantize: xnnpack quantizes nothing",
        "methods.whole.partitioners[0]: add_sub supports none of its operators",
    ):
        assert what in bench.output
    assert "methods.part" not in bench.output and "methods.empty" not in bench.output
    assert not (bench.root / "build/unmet/unmet.pte").exists()

    bench.edit(config, "      - add_sub\n", "")
    bench.edit(config, "  nothing:\n", "  nothing:\n    allow_none: true\n")
    assert bench.doit() == 0, bench.output
    outcomes = bench.outcomes()
    assert outcomes["compile unmet/nothing"] != "built"  # linking decides, not compiling
    assert "in the last build" not in bench.output

    bench.edit(config, "modules: [linear]", "per_op_mode: true, modules: [linear]")
    bench.edit(
        config,
        "quantize: {quantizer: xnnpack, dynamic: true}\n    partitioners: [xnnpack, add_sub]",
        "partitioners: []",
    )
    assert bench.doit() == 0, bench.output
    warning = "unmet/part: warning: 0.0 % of nodes delegated, 87.5 % in the last build [PTE375]"
    assert warning in bench.output
    for page in ("index.html", "unmet/report.html", "unmet/report.md"):
        text = (bench.root / "build" / page).read_text()
        assert "Delegated less than before" in text, page
    assert bench.doit() == 0
    assert "up to date: 1 package" in bench.output
    assert "in the last build" not in bench.output
