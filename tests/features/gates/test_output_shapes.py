"""An output whose shape isn't the accepted one shows in the report, its head, and `doit diff`."""

import copy

import pytest

from pipeline.features.gates.comparison import compare_builds
from pipeline.features.gates.figures import make_figures
from pipeline.features.gates.outputs import output_shapes
from pipeline.features.gates.section import _change, compare, is_change, is_worse
from pipeline.features.pages.scores import list_answers
from pipeline.report.formatting import milliseconds, percent
from tests.support import golden
from tests.support.builds import leaf, manifest

ACCEPTED = {"classify": {"outputs": {"logits": "float32 [1, 10]", "mask": "bool [1]"}}}


def report(shapes, accepted=ACCEPTED):
    record = copy.deepcopy(golden.records()["vision"])
    methods = {"digest": "0" * 64, "methods": accepted}
    return {**record, "baseline": methods, "output_shapes": {"classify": shapes}}


@pytest.mark.parametrize(
    ("shapes", "change"),
    [
        ({"logits": "float32 [1, 24]", "mask": "bool [1]"}, ["float32 [1, 10] to float32 [1, 24]"]),
        ({"logits": "int8 [1, 10]", "mask": "bool [1]"}, ["float32 [1, 10] to int8 [1, 10]"]),
        ({"logits": "float32 [1, 10]"}, ["bool [1] to none"]),
        (dict(ACCEPTED["classify"]["outputs"]), []),
        ({}, []),  # from a record of an older version
    ],
)
def test_an_output_that_changed_is_a_worse_figure(shapes, change):
    rows = [row for row in compare(report(shapes)) if row["figure"].startswith("output")]
    assert [row["change"].text for row in rows] == change
    assert all(map(is_worse, rows))


def test_the_head_of_the_page_names_it_first():
    shapes = {"logits": "float32 [1, 24]", "mask": "bool [1]"}
    (changed,) = [each for each in list_answers(report(shapes)) if each["title"] == "changed"]
    assert changed["lines"][0].startswith(
        "since the baseline: output logits of classify float32 [1, 10] to float32 [1, 24]"
    )


def test_a_baseline_of_before_names_no_outputs():
    shapes = {"logits": "float32 [1, 24]"}
    assert not any("output" in row["figure"] for row in compare(report(shapes, {"classify": {}})))


def test_a_diff_with_a_baseline_alone_names_it():
    changed = manifest()
    changed["methods"]["encode"]["signature"]["outputs"] = leaf("output") | {"sizes": [1, 24]}
    accepted = {
        "figures": make_figures(manifest()),
        "manifest": None,
    }  # only its baseline is left
    built = {"figures": make_figures(changed), "manifest": changed}
    comparison = compare_builds("asr", accepted, built, "baseline")
    assert "output output of encode float32 [4] to float32 [1, 24]" in "\n".join(
        comparison.markdown()
    )


def test_a_dynamic_size_is_its_range():
    size = {"size": "d0", "min": 2, "max": 64}
    tree = [
        "tuple",
        leaf("a") | {"sizes": [1, size]},
        ["dict", ["b", {"name": "b", "type": "int"}]],
    ]
    assert output_shapes({"outputs": tree}) == {"a": "float32 [1, 2 to 64]"}


def test_a_share_changes_by_points_and_a_latency_may_differ_by_noise_alone():
    share = _change("score", "nodes delegated", 0.667, 0.0, percent)["change"]
    assert (share.text, share.kind) == ("−66.7 points", "bad")
    noise = _change("route", "latency", 0.0286, 0.0476, milliseconds, True, counts=False)
    assert (noise["change"].text, is_change(noise)) == ("within noise", False)
    same = _change("route", "latency", 0.0286, 0.0286, milliseconds, True, counts=False)
    assert same["change"].text == "none"
