"""Validation ends when its time is spent, and says what it left out."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.export import export

from pipeline.config.validation import ValidateConfig
from pipeline.devices.interface import PackageFiles
from pipeline.features.latency.latency import measure_latencies
from pipeline.features.locating import walk as walking
from pipeline.features.locating.locate import locate, locate_failures
from pipeline.features.pages.markdown import markdown
from pipeline.program.eager import Source
from pipeline.program.inputs import InputSet
from pipeline.report.packages import describe_left_out
from pipeline.report.verdicts import package_verdict
from pipeline.validate import budget as budgets
from pipeline.validate.budget import Budget
from pipeline.validate.method_result import MethodValidation
from pipeline.validate.package import validate_package
from pipeline.validate.results import Validation
from pipeline.validate.runs import JudgedCall
from tests.features.locating.test_locate import X, portable
from tests.mutations.samples import SAMPLES, _packed


def validated(name, folder, budget, **options):
    sample = SAMPLES[name]()
    pte = folder / "model.pte"
    pte.write_bytes(sample.files.pte)
    return validate_package(
        pte, (), sample.programs, sample.examples, ValidateConfig(), sample.constants,
        sequences=None if sample.shares_state else (), budget=budget, **options,
    )  # fmt: skip


@pytest.mark.parametrize("name", ["portable", "sharing"])
def test_only_the_first_call_is_made_whatever_that_takes(name, tmp_path):
    cases = dict.fromkeys(SAMPLES[name]().programs, ("zeros", "strided"))
    validation = validated(name, tmp_path, Budget(0), cases=cases)
    assert validation.ok and not validation.is_complete
    first, *others = (each for each in validation.methods if each.kind == "program")
    assert len(first.runs) == 1
    assert {"zeros", "strided"} <= {*first.left_out}
    assert any(left.startswith("generated 1") for left in first.left_out)
    assert all(each.left_out == ["all"] and not each.runs for each in others)
    record = validation.to_json()
    record["methods"][0]["left_out"].append("latency")
    said = f"1 method, {len(first.left_out)} input sets, the latency of 1 method left out"
    assert describe_left_out(record) == f"{said}: validate.budget was exhausted"
    assert package_verdict(record) == "not run"
    text = markdown(record)
    assert f"{said}: validate.budget was exhausted." in text
    assert f"| `{others[0].method}` (program) | source | not run |" in text
    assert ("example 0, from call 2 on" in first.left_out) == (name == "sharing")


class Slow(nn.Module):
    def forward(self, x):
        return torch.relu(x) * 2.0 - x


CALL = 0.05  # seconds that a source call takes on the clock of these tests


@pytest.fixture
def slow(monkeypatch, tmp_path):
    """A package of three methods, and a clock for budgets that only source calls advance."""
    programs = {name: export(Slow(), (torch.randn(4, 8),)) for name in "abc"}
    pte = tmp_path / "slow.pte"
    pte.write_bytes(_packed(programs, {}).pte)
    clock = SimpleNamespace(seconds=0.0, monotonic=lambda: clock.seconds)
    monkeypatch.setattr(budgets, "time", clock)

    def delayed(self, leaves, own=Source._call_module):
        clock.seconds += CALL
        return own(self, leaves)

    monkeypatch.setattr(Source, "_call_module", delayed)
    return pte, programs, clock


ONE_CALL = CALL * 3  # one of the source and two with newly rounded values


@pytest.mark.parametrize("seconds", [0.4, 1.0])
def test_the_budget_is_kept_but_for_one_call(slow, seconds):
    pte, programs, clock = slow
    validation = validate_package(
        pte, (), programs, {}, ValidateConfig(inputs=20), {},
        cases=dict.fromkeys(programs, ("zeros", "large", "strided")), budget=Budget(seconds),
    )  # fmt: skip
    assert seconds * 0.75 <= clock.seconds < seconds + ONE_CALL
    assert validation.ok and not validation.is_complete
    assert validation.methods[0].runs


def test_timing_keeps_the_budget_too(slow):
    pte, programs, clock = slow
    validation = validate_package(pte, (), programs, {}, ValidateConfig(inputs=1), {})
    calls, files = clock.seconds, PackageFiles.of(pte)
    times = measure_latencies(files, validation.methods, programs, {}, ValidateConfig(), Budget(0))
    assert clock.seconds == calls
    assert times == dict.fromkeys("abc")
    assert [each.left_out for each in validation.methods] == [["latency"]] * 3
    assert not validation.is_complete


def test_nothing_is_left_out_in_time(tmp_path):
    validation = validated("portable", tmp_path, Budget(300))
    assert validation.is_complete
    assert describe_left_out(validation.to_json()) == ""


def failed(method, sqnr):
    result = MethodValidation(method, runs=[JudgedCall("example 0", ())])
    result.fail(f"SQNR {sqnr}")
    return result


def test_every_method_that_is_not_looked_into_says_so():
    evidence = portable().evidence()
    evidence = type(evidence)(
        **{**vars(evidence), "sources": dict.fromkeys("abc", evidence.sources["run"])}
    )
    validation = Validation("small.pte", tuple(map(failed, "abc", (1, 2, 3))), (), {})
    located = locate_failures(evidence, validation, {}, Budget(0))
    assert list(located) == ["a", "b", "c"]
    for name, each in located.items():
        assert each.notes[0].startswith(f"{name}: not examined: ")
        assert "validate.budget" in each.notes[0] and not each.culprits


def test_the_worst_comes_first():
    good, bad = MethodValidation("good"), failed("bad", 1)
    assert sorted([good, bad], key=lambda each: each.badness) == [bad, good]


def test_the_budget_is_no_part_of_a_key():
    assert ValidateConfig(budget=5).resolved() == ValidateConfig().resolved()


def test_a_search_ends_between_two_instructions_when_its_time_is_spent(monkeypatch):
    looked = []
    monkeypatch.setattr(walking, "_compare", lambda *given: looked.append(given) or [])
    evidence = portable().evidence()
    located = locate(evidence, "run", [("run", InputSet((X,)))], budget=Budget(0))
    assert located.notes == (
        "run: validate.budget was exhausted before the faulty operator was found",
    )
    assert not located.culprits and not looked
