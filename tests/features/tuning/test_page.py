"""The table and the page of a search."""

import json
from types import SimpleNamespace

import pytest

from pipeline.features.tuning.page import make_record, render_page
from pipeline.features.tuning.table import list_lines
from pipeline.features.tuning.trials import Trial, TrialFolder
from tests.features.tuning.spaces import space_of, workspace_at, write_config


def trial(number, choice, figures, held_out=None, *faults):
    return Trial(number, choice, f"pair-{number}", figures, held_out or {}, faults, ())


@pytest.fixture
def search(tmp_path):
    trials = [
        trial(0, None, {"size": 9000, "sqnr": 120.0}, {"sqnr": 120.0}),
        trial(1, (0, 0), {"size": 9500, "sqnr": 110.0}, {"sqnr": 110.0}),
        trial(2, (1, 0), {"size": 4000, "sqnr": 30.0}, {"sqnr": 24.0}),
        trial(3, (1, 1), {"size": 20_000}, {}, "size 20.0 kB breaks max_size 10.0 kB"),
    ]
    return SimpleNamespace(
        space=space_of(write_config(tmp_path)),
        trials=trials,
        objectives={"size": "min", "sqnr": "max"},
        limits={"min_sqnr": 25.0, "max_size": 10_000.0},
        names=["size", "sqnr"],
        present="pair-0",
        seed=0,
        screening=None,
        folder=TrialFolder(workspace_at(tmp_path), "pair"),
    )


def test_the_front_comes_first_and_the_gap_is_shown(search):
    title, _, *rows, reason, best = list_lines(search)
    assert title.split("  ")[0] == "trial" and "sqnr (held out)" in title
    assert [row.split()[0] for row in rows] == ["2", "0", "1", "3"]
    assert "best" in rows[0] and "{quantizer: xnnpack, per_channel: true}" in rows[0]
    assert "present, front" in rows[1] and "as it is" in rows[1]
    assert reason == "trial 3: size 20.0 kB breaks max_size 10.0 kB"
    assert best == (
        "best: trial 2, size 4.0 kB instead of 9.0 kB; "
        "sqnr 30.0 dB on the inputs used for the choice, 24.0 dB on the others"
    )


def test_a_reason_is_told_once_without_the_line_that_nobody_wrote(search):
    search.trials += [
        trial(n, (1, 1), {}, {}, f"partition_configs/pair-{n}.yaml:8: methods.embed: no inputs")
        for n in (4, 5)
    ]
    assert "trials 4, 5: methods.embed: no inputs" in [*list_lines(search)]


def test_without_a_sound_trial_nothing_is_best(search):
    search.trials = search.trials[3:]
    assert [*list_lines(search)][-1] == "no trial meets all limits"
    assert b"No trial holds all limits" in render_page(search)
    assert make_record(search)["best"] is None


def test_the_page_has_a_dot_for_each_trial_with_both_figures(search):
    page = render_page(search).decode()
    assert page.count("<circle") == 3
    assert "<title>trial 2 (best)\nmethods.decode.quantize: {quantizer: xnnpack" in page
    assert page.count('r="7"') == 1  # the current config
    assert "<script" not in page and "http" not in page
    search.objectives = {"size": "min"}
    assert b"<svg" not in render_page(search)


def test_the_record_has_values_as_the_config_would(search):
    record = json.loads(json.dumps(make_record(search)))
    assert record["best"] == 2
    assert [each["front"] for each in record["trials"]] == [True, False, True, False]
    assert record["trials"][3]["values"] == {
        "methods.decode.quantize": {"quantizer": "xnnpack", "per_channel": True},
        "defaults.partitioners": [],
    }
    assert record["space"]["defaults.partitioners"] == [["xnnpack"], []]
