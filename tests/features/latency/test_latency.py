"""The latency of methods: what is measured and that it is plausible, never how large it is."""

import json
from pathlib import Path
from time import sleep

import pytest
import torch

from pipeline.config.validation import ValidateConfig
from pipeline.devices.bindings import Package
from pipeline.devices.interface import PackageFiles
from pipeline.features.latency import latency
from pipeline.features.latency.latency import (
    find_latency,
    measure_latencies,
    measure_latency,
    round_figure,
    spread,
)
from pipeline.features.pages.markdown import markdown
from pipeline.program.inputs import InputSet
from pipeline.run.prove.call_times import timed_calls
from pipeline.run.stages import LOADS, PACKAGE_CALLS, SOURCE_CALLS, Stages
from pipeline.validate.package import validate_package
from tests.devices.test_bindings import Counter, Encoder, exported, lowered, write


@pytest.fixture(scope="module")
def package():
    programs = {
        "encode": exported(Encoder(), torch.ones(2, 4)),
        "count": exported(Counter(), torch.ones(3)),
    }
    made = {"encode": exported(Encoder(), torch.ones(2, 4)), "count": programs["count"]}
    return write("timed.pte", lowered(made).buffer), programs


def timed(package, **config):
    pte, programs = package
    settings = ValidateConfig(inputs=1, steps=1, **config)
    examples = {"encode": [InputSet((torch.ones(2, 4),), {}, "example 0")]}
    validation = validate_package(pte, [], programs, examples, settings, {})
    assert validation.ok, validation.failures
    return measure_latencies(PackageFiles.of(pte), validation.methods, programs, examples, settings)


def check_spread(figures):
    assert figures.keys() == {"median", "low", "high", "runs"}
    assert 0 < figures["low"] <= figures["median"] <= figures["high"]
    assert figures["runs"] >= 1


def test_every_figure_of_a_method(package):
    found = timed(package, latency={"seconds": 0.2})
    assert found.keys() == {"encode", "count"}
    for figures in found.values():
        assert figures.keys() == {"load_ms", "first_ms", "steady_ms", "source_ms", "ratio"}
        for name in ("load_ms", "steady_ms", "source_ms"):
            check_spread(figures[name])
        assert figures["load_ms"]["runs"] <= 5
        assert figures["steady_ms"]["runs"] >= 4 and figures["source_ms"]["runs"] >= 4
        assert figures["first_ms"] > 0
        ratio = figures["steady_ms"]["median"] / figures["source_ms"]["median"]
        assert figures["ratio"] == pytest.approx(ratio, rel=0.02)  # figures are rounded
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_the_least_time_still_measures_everything_once(package):
    for figures in timed(package, latency={"seconds": 1e-9}).values():
        assert figures["load_ms"]["runs"] == 1
        assert figures["steady_ms"]["runs"] == figures["source_ms"]["runs"] == 1


def test_no_time_measures_nothing(package, monkeypatch):
    monkeypatch.setattr(latency, "measure_latency", lambda *given: pytest.fail("measured"))
    assert timed(package, latency={"seconds": 0}) == {"encode": None, "count": None}


def test_what_did_not_pass_or_has_no_program_is_left_out(package):
    pte, programs = package
    settings = ValidateConfig(inputs=1, steps=1, latency={"seconds": 0.01})
    others = {
        "encode": exported(Encoder(seed=1), torch.ones(2, 4)),
        "count": programs["count"],
    }
    validation = validate_package(pte, [], others, {}, settings, {})
    files = PackageFiles.of(pte)
    found = measure_latencies(files, validation.methods, others, {}, settings)
    assert found["encode"] is None and found["count"] is not None
    unrun = validate_package(pte, [], programs, {}, settings, {}, {"count": "no such device"})
    assert measure_latencies(files, unrun.methods, programs, {}, settings)["count"] is None


def test_what_another_device_runs_is_left_out(package, monkeypatch):
    monkeypatch.setattr(latency, "EXECUTORCH", "another")
    assert set(timed(package).values()) == {None}


def test_inputs_that_a_method_refuses_give_no_figures(package):
    pte, programs = package
    wrong = InputSet((torch.ones(2, 5),), {}, "wrong")
    assert measure_latency(PackageFiles.of(pte), "encode", programs["encode"], wrong, 0.01) is None


class Filling(torch.nn.Module):
    """Fills its cache row by row, and raises once it is full."""

    def __init__(self, size):
        super().__init__()
        self.register_buffer("cache", torch.zeros(size, 3))
        self.register_buffer("place", torch.zeros(1, dtype=torch.int64))

    def forward(self, x):
        self.cache.index_copy_(0, self.place, x.unsqueeze(0))
        self.place.add_(1)
        return self.cache.sum(0)


@pytest.mark.parametrize("size", [1, 8])
def test_a_cache_that_is_full_ends_a_turn(size):
    program = exported(Filling(size), torch.ones(3))
    files = PackageFiles.of(write("full.pte", lowered({"fill": program}).buffer))
    inputs = InputSet((torch.ones(3),), {}, "example 0")
    figures = measure_latency(files, "fill", program, inputs, 3.0)
    if size == 1:
        assert figures is None  # nothing but the first run succeeds
    else:
        assert figures["steady_ms"]["runs"] == figures["source_ms"]["runs"] == 28


def test_the_source_program_keeps_its_state(package):
    _, programs = package
    before = programs["count"].state_dict["total"].clone()
    assert timed(package, latency={"seconds": 0.05})["count"] is not None
    assert torch.equal(programs["count"].state_dict["total"], before)


def test_a_method_that_loads_slowly_is_timed_by_its_validation(package, monkeypatch):
    pte, programs = package
    settings = ValidateConfig(inputs=8, steps=2, latency={"seconds": 0.03})
    stages = Stages()
    load = Package.load
    monkeypatch.setattr(Package, "load", lambda *given: sleep(0.05) or load(*given))
    with stages.stage("run"), timed_calls(stages.step):
        validation = validate_package(pte, [], programs, {}, settings, {})
    monkeypatch.setattr(latency, "measure_latency", lambda *given: pytest.fail("measured"))
    files = PackageFiles.of(pte)
    steps = [*zip(stages.steps, stages.subjects, strict=True)]
    found = measure_latencies(files, validation.methods, programs, {}, settings, steps=steps)
    for name, figures in found.items():
        calls = sum(step[0] == PACKAGE_CALLS and about == name for step, about in steps)
        loads = figures["load_ms"]["runs"]
        steady = figures["steady_ms"]["runs"]
        assert 8 <= calls <= loads + steady  # a call after each load but the last is a first one
        assert steady < calls
        assert figures["source_ms"]["runs"] >= 4
        ratio = figures["steady_ms"]["median"] / figures["source_ms"]["median"]
        assert figures["ratio"] == pytest.approx(ratio, rel=0.02)
        for key in ("load_ms", "steady_ms", "source_ms"):
            check_spread(figures[key])


def steps_of(program, calls=5, load=1.0):
    steps = [(LOADS, 0.0, load, "run"), (LOADS, 1.0, 1.0, "run")]
    for number in range(calls + 1):
        # The first call of each side takes ten times as long.
        factor = 10.0 if number == 0 else 1.0
        steps.append((PACKAGE_CALLS, 2.0, 2.0 + 0.25 * factor, "run"))
        steps.append((PACKAGE_CALLS, 2.0, 9.0, "other"))
        steps.append((SOURCE_CALLS, 3.0, 3.0 + 0.5 * factor, program))
        steps.append((SOURCE_CALLS, 3.0, 9.0, "other"))
        steps.append((LOADS, 4.0, 4.001, "run"))  # was loaded already
    return [(step, about) for *step, about in steps]


def test_the_times_of_a_validation():
    program = exported(Encoder(), torch.ones(2, 4))
    found = find_latency(steps_of(program), "run", program, 0.3)
    assert found["load_ms"] == {"median": 1000.0, "low": 1000.0, "high": 1000.0, "runs": 1}
    assert found["first_ms"] == 2500.0
    assert found["steady_ms"]["median"] == 250.0 and found["steady_ms"]["runs"] == 5
    assert found["source_ms"]["median"] == 500.0 and found["source_ms"]["runs"] == 5
    assert found["ratio"] == 0.5


def test_what_a_validation_does_not_show_is_measured():
    program = exported(Encoder(), torch.ones(2, 4))
    assert find_latency(steps_of(program, load=0.09), "run", program, 0.3) is None
    assert find_latency(steps_of(program, calls=3), "run", program, 0.3) is None
    batch = {"x": {0: torch.export.Dim("batch")}}
    dynamic = torch.export.export(Encoder(), (torch.ones(2, 4),), dynamic_shapes=batch)
    assert find_latency(steps_of(dynamic), "run", dynamic, 0.3) is None


def test_quartiles():
    figures = {"median": 2.0, "low": 1.5, "high": 2.5, "runs": 3}
    assert spread([0.001, 0.003, 0.002]) == figures
    assert spread([0.5]) == {"median": 500.0, "low": 500.0, "high": 500.0, "runs": 1}


@pytest.mark.parametrize(
    ("figure", "told"), [(123456.0, 123000.0), (0.0123456, 0.0123), (9.999, 10.0), (0.0, 0.0)]
)
def test_figures_have_three_digits(figure, told):
    assert round_figure(figure) == told


def test_a_report_tells_the_latency(package):
    pte, programs = package
    settings = ValidateConfig(inputs=1, steps=1)
    record = validate_package(pte, [], programs, {}, settings, {}).to_json()
    bare = markdown(record)
    assert "Latency" not in bare
    record["methods"][0]["latency"] = {
        "load_ms": {"median": 1.5, "low": 1.25, "high": 2.0, "runs": 5},
        "first_ms": 0.75,
        "steady_ms": {"median": 0.5, "low": 0.25, "high": 0.625, "runs": 99},
        "source_ms": {"median": 1.0, "low": 0.875, "high": 1.5, "runs": 90},
        "ratio": 0.5,
    }
    record["methods"][1]["latency"] = None
    row = (
        "| `encode` | 1.5 ms (1.25 ms to 2 ms, 5 runs) | 0.75 ms "
        "| 0.5 ms (0.25 ms to 0.625 ms, 99 runs) | 1 ms (0.875 ms to 1.5 ms, 90 runs) | 0.50 "
    )
    assert row in markdown(record)


def test_a_build_tells_the_latency_of_each_method(built):
    record = json.loads(built.bytes_of("pair", "report.json"))
    methods = {each["method"]: each["latency"] for each in record["methods"]}
    assert methods.keys() == {"encode", "decode", "get_size"} and methods["get_size"] is None
    check_spread(methods["decode"]["steady_ms"])
    report = (Path(built.root) / "build" / "pair" / "report.md").read_text()
    assert "<summary>Latency on the host</summary>" in report
