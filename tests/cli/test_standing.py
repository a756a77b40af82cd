"""Outputs that aren't judged or not run are reported each time, and affect the exit status."""

from types import SimpleNamespace

import pytest

from pipeline.cli.standing import (
    describe_packages,
    describe_standing,
    find_standing,
    is_all_accepted,
)
from pipeline.report.events import Event

LEFT_OUT = "2 input sets left out: validate.budget was exhausted"
FACTS = {
    "late": {"verdict": "passed", "complete": False, "left_out": LEFT_OUT},
    "good": {"verdict": "passed"},
    "int8": {"verdict": "not judged", "methods": {"encode": "not judged"}},
    "grown": {"verdict": "passed", "no_baseline": ["max_size_growth"]},
    "phone": {"verdict": "not run", "methods": {"decode": "not run"}, "allow": ["not-run"]},
}


def standing_of(*packages, allow=(), outcome="up-to-date"):
    states = {name: {"validate": FACTS[name]} for name in packages}
    workspace = SimpleNamespace(state=states.__getitem__, allow=allow)
    events = [Event("validate", name, None, "m", outcome) for name in packages]
    return find_standing(SimpleNamespace(workspace=workspace), events)


def test_a_run_with_nothing_to_do_counts_what_has_not_passed():
    standing = standing_of("good", "int8", "phone")
    assert list(describe_packages(3, standing)) == [
        "up to date: 3 packages, 1 with methods not run, 1 not judged"
    ]
    assert not is_all_accepted(standing)
    assert list(describe_standing(standing)) == [
        "not run (allowed): phone/decode",
        "not judged: int8/encode; see the reports; `--allow not-judged` accepts it",
    ]


def test_what_a_validation_had_no_time_for_is_reported_each_time():
    standing = standing_of("late", "good")
    assert is_all_accepted(standing)
    assert list(describe_packages(2, standing)) == [
        "up to date: 2 packages",
        "late: 2 input sets left out: validate.budget was exhausted",
    ]


def test_a_gate_without_a_baseline_is_reported_and_ends_well():
    standing = standing_of("grown")
    assert is_all_accepted(standing)
    assert list(describe_standing(standing)) == [
        "no baseline yet: grown; `doit baseline grown` records one"
    ]


@pytest.mark.parametrize(
    ("packages", "allow", "accepted"),
    [
        (("good",), (), True),
        (("int8",), (), False),
        (("int8",), ("not-run",), False),
        (("int8",), ("not-judged",), True),
        (("phone",), (), True),  # its config allows it
    ],
)
def test_a_verdict_is_accepted_where_it_is_declared_to_be_good_enough(packages, allow, accepted):
    assert is_all_accepted(standing_of(*packages, allow=allow)) is accepted


@pytest.mark.parametrize("name", ["good", "int8", "phone"])
def test_what_is_only_lowered_has_a_verdict_but_no_say_in_the_status(name):
    facts = {**FACTS[name], "action": "digest"}
    workspace = SimpleNamespace(state=lambda package: {"validate": facts}, allow=())
    current = SimpleNamespace(workspace=workspace, validate_digest=lambda package: "digest")
    changed = SimpleNamespace(workspace=workspace, validate_digest=lambda package: "another")
    lowered = [Event("link", name, None, "m", "up-to-date")]
    (standing,) = find_standing(current, lowered)
    assert standing.verdict == facts["verdict"] and is_all_accepted([standing])
    assert list(describe_standing([standing])) == []
    assert find_standing(changed, lowered) == []
    both = [*lowered, Event("validate", name, None, "m", "up-to-date")]
    assert [each.selected for each in find_standing(current, both)] == [True]


def test_a_record_without_a_verdict_has_not_passed():
    workspace = SimpleNamespace(state=lambda package: {"validate": {}}, allow=())
    event = Event("validate", "old", None, "m", "up-to-date")
    standing = find_standing(SimpleNamespace(workspace=workspace), [event])
    assert [each.verdict for each in standing] == ["not run"] and not is_all_accepted(standing)


def test_a_validation_that_failed_stands_for_nothing():
    assert standing_of("int8", outcome="failed") == []


EXAMPLES = """

def example_inputs(method):
    return [(torch.randn(2, SIZE),) for _ in range(4)]
"""


@pytest.mark.slow
def test_the_exit_status_is_that_of_the_worst_verdict(bench):
    pair = bench("pair")
    pair.allow = ""
    pair.edit(
        "partition_configs/pair.yaml",
        "partitioners: [xnnpack]",
        "{partitioners: [xnnpack], quantize: {quantizer: xnnpack, dynamic: true}}",
    )
    config = pair.root / "partition_configs" / "pair.yaml"
    config.write_text(config.read_text().replace("decode:\n    {", "decode: {"))
    assert pair.doit() == 1
    assert "not judged: pair/decode; " in pair.output
    assert pair.doit() == 1 and "up to date: 1 package, 1 not judged" in pair.output
    assert pair.process("validate", "--allow", "not-judged") == 0
    assert "not judged (allowed): pair/decode" in pair.output
    allowing = config.read_text() + "validate: {allow: [not-judged]}\n"
    config.write_text(allowing)
    assert pair.doit() == 0, pair.output
    assert "not judged (allowed): pair/decode" in pair.output
    model = pair.root / "models" / "pair.py"
    model.write_text(model.read_text() + EXAMPLES)
    limit = "validate: {methods: {decode: {min_sqnr: 20}}}"
    config.write_text(allowing.replace("validate: {allow: [not-judged]}", limit))
    assert pair.doit() == 0 and " passed " in pair.output, pair.output
