"""Stages of an action, and the steps within them."""

import resource
import sys

import pytest

from pipeline.run.stages import IMPORT, WAIT, Stages, peak_of


def test_stages_count_what_is_left_beside_their_steps(monkeypatch):
    """A step within a step is part of it; a step that made nothing is left out."""
    clock = iter(range(100))
    monkeypatch.setattr("time.perf_counter", lambda: next(clock))
    stages = Stages()
    for name in (WAIT, IMPORT):
        with stages.stage(name):
            pass
    with stages.stage("lower"):  # 4 to 9
        with stages.step("decompose"), stages.step("within"):  # 5 to 6
            pass
        with stages.step("decompose"):  # 7 to 8
            pass
    assert stages.seconds() == {"lower": 3.0, "decompose": 2.0}
    assert stages.total == 5


def test_a_step_that_fails_is_timed_and_ends():
    stages = Stages()
    with pytest.raises(ValueError), stages.stage("lower"), stages.step("decompose"):
        raise ValueError
    with stages.stage("emit"), stages.step("write"):
        pass
    assert [name for name, *_ in stages.steps] == ["decompose", "write"]


def test_a_step_is_told_by_its_name_and_none_within_it():
    told = []
    stages = Stages(lambda stage, steps_done, total: told.append(stage))
    with stages.stage("lower"), stages.step("partition xnnpack"), stages.step("decompose"):
        assert stages.current == "lower"
    assert told == ["lower", "partition xnnpack", "lower"]


def test_peaks_are_bytes_on_macos_and_kibibytes_elsewhere(monkeypatch):
    usage = resource.getrusage(resource.RUSAGE_SELF)
    assert peak_of(usage) == usage.ru_maxrss * 1024 > 10 << 20
    monkeypatch.setattr(sys, "platform", "darwin")
    assert peak_of(usage) == usage.ru_maxrss
