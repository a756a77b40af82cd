"""Validation ends when its time is spent, and says what it left out."""

import pytest

from pipeline.config.validation import ValidateConfig
from pipeline.report.markdown import markdown
from pipeline.report.packages import describe_left_out
from pipeline.validate.locate.locate import locate_failures
from pipeline.validate.package import validate_package
from pipeline.validate.results import Failure, MethodValidation, Validation
from tests.mutations.samples import SAMPLES
from tests.validate.test_locate import portable


@pytest.mark.parametrize("name", ["portable", "sharing"])
def test_each_method_makes_its_first_call_whatever_that_takes(name, tmp_path):
    sample = SAMPLES[name]()
    pte = tmp_path / "model.pte"
    pte.write_bytes(sample.files.pte)
    settings = ValidateConfig(budget=1e-9)
    cases = dict.fromkeys(sample.programs, ("zeros", "strided"))
    sequences = None if sample.shares_state else ()
    validation = validate_package(
        pte, (), sample.programs, sample.examples, settings, sample.constants,
        cases=cases, sequences=sequences,
    )  # fmt: skip
    assert validation.ok and not validation.is_complete
    steps = {"portable": 1, "sharing": settings.steps}[name]
    for method in validation.methods:
        if method.kind == "program":
            assert len(method.runs) == steps
            assert {"zeros", "strided"} <= {*method.left_out}
            assert any(left.startswith("generated 1") for left in method.left_out)
    record = validation.to_json()
    assert "left out: validate.budget was spent" in describe_left_out(record)
    text = markdown(record)
    assert "input sets left out: validate.budget was spent." in text
    if name == "sharing":
        assert any(" > " in left for left in validation.methods[0].left_out)


def test_nothing_is_left_out_in_time(tmp_path):
    sample = SAMPLES["portable"]()
    pte = tmp_path / "model.pte"
    pte.write_bytes(sample.files.pte)
    validation = validate_package(pte, (), sample.programs, {}, ValidateConfig(), sample.constants)
    assert validation.is_complete
    assert describe_left_out(validation.to_json()) == ""


def failed(method, sqnr):
    return MethodValidation(method, failures=[Failure(method, f"SQNR {sqnr}")])


def test_every_method_that_is_not_looked_into_says_so():
    evidence = portable().evidence()
    evidence = type(evidence)(
        **{**vars(evidence), "sources": dict.fromkeys("abc", evidence.sources["run"])}
    )
    validation = Validation("small.pte", tuple(map(failed, "abc", (1, 2, 3))), (), {})
    located = locate_failures(evidence, validation, {}, seconds=0.0)
    assert list(located) == ["a", "b", "c"]
    for name, each in located.items():
        assert each.notes[0].startswith(f"{name}: not looked into: ")
        assert "validate.budget" in each.notes[0] and not each.culprits


def test_the_worst_comes_first():
    good, bad = MethodValidation("good"), failed("bad", 1)
    assert sorted([good, bad], key=lambda each: each.badness) == [bad, good]


def test_the_budget_is_no_part_of_a_key():
    assert ValidateConfig(budget=5).resolved() == ValidateConfig().resolved()
