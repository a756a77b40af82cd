"""The task metrics of model cards."""

from pipeline.features.publish.card import _describe_metrics, _describe_verdicts

FACTS = {"metric": "top1", "method": "forward", "methods": [], "samples": 200, "source": 0.9}
TOP1 = {
    **FACTS,
    "value": 0.8751,
    "interval": [0.82, 0.91],
    "drop": 0.0249,
    "drop_interval": [-0.01, 0.06],
}


def describe(*rows):
    return list(_describe_metrics({"metrics": list(rows)}))


def test_a_metric_has_one_row_whatever_its_limits():
    limits = ({"kind": "min", "limit": 0.8}, {"kind": "max_drop", "limit": 0.05})
    _, _, table = describe(*({**TOP1, **limit} for limit in limits))
    assert table.splitlines()[2:] == [
        "| top1 | forward | 0.875 | 0.82 to 0.91 | 0.9 | 0.0249 | −0.01 to 0.06 | 200 |"
    ]


def test_what_is_not_known_of_a_metric_is_left_open():
    loop = {**FACTS, "metric": "word|errors", "methods": ["encode", "decode"], "value": 0.25}
    _, _, table = describe({**loop, "interval": None, "source": None})
    (row,) = table.splitlines()[2:]
    assert row == "| word\\|errors | encode, decode | 0.25 | – | – | – | – | 200 |"


def test_a_metric_that_was_not_run_is_not_in_the_card():
    assert describe({**FACTS, "not_run": "no data"}) == describe() == []


def test_this_machine_has_a_verdict_of_its_own():
    """A method that a device failed or didn't run has the verdict of that device."""
    here = {"verdict_here": "passed"}
    devices = {"native": {"verdict": "not run", **here}, "pi5": {"verdict": "passed", **here}}
    method = {"method": "forward", "verdict": "not run", "devices": devices}
    table = _describe_verdicts({"methods": [method, {"method": "plain", "verdict": "passed"}]})
    assert table.splitlines()[2:] == [
        "| `forward` | passed | not run | passed |",
        "| `plain` | passed | – | – |",
    ]
