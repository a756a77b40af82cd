"""A float method is judged on the state that quantized methods write; what they lose is apart."""

import copy

import pytest
import torch
from executorch.exir.passes import MemoryPlanningPass
from torch import nn
from torch.export import export

from pipeline.config.validation import ValidateConfig
from pipeline.program.inputs import InputSet
from pipeline.report.method_records import METHOD_OUTLINE
from pipeline.store.forms import check_of
from pipeline.validate.package import validate_package
from tests.devices.test_bindings import lowered, write

X = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
SETS = [InputSet((X * factor,), {}, f"example {factor}") for factor in (1.0, 0.7)]


class State(nn.Module):
    """Rounds to steps of 1 / `steps`, as a quantization would; without `steps`, not.

    A package of another `weight` is wrong.
    """

    def __init__(self, steps=None, weight=1.0):
        super().__init__()
        self.steps, self.weight = steps, weight
        self.register_buffer("cache", torch.zeros(4, 8))
        self.register_buffer("next", torch.zeros(4, 8))

    def round(self, x):
        x = x * self.weight
        return x if self.steps is None else torch.round(x * self.steps) / self.steps


class Of(nn.Module):
    def __init__(self, *facts):
        super().__init__()
        self.state = State(*facts)


class Write(Of):
    def forward(self, x):
        self.state.cache.copy_(self.state.round(x))
        return x * 2


class Read(Of):
    """Wrong only after another method has written."""

    def forward(self, x):
        return self.state.round(self.state.cache * 3) + x


class Add(Of):
    """Reads and writes."""

    def forward(self, x):
        self.state.cache.add_(self.state.round(x))
        return self.state.cache * 3


class Pass(Of):
    """Writes what it reads to where others read it, and doesn't return it."""

    def forward(self, x):
        self.state.next.copy_(self.state.round(self.state.cache))
        return x + 1


class ReadNext(Of):
    def forward(self, x):
        return self.state.round(self.state.next * 2) + x


def validated(kinds, quantized, wrong=(), **settings):
    """Return the results by method.

    Args:
        kinds: the classes of the methods, by name.
        quantized: by method, the steps that it rounds to.
        wrong: the methods that differ in the package by 0.4 %.
    """
    programs = {name: export(kind(), (X,)) for name, kind in kinds.items()}
    by_steps = {name: export(kinds[name](n), (X,)) for name, n in quantized.items()}
    packed = {**programs, **by_steps}
    for name in wrong:
        packed[name] = export(kinds[name](quantized.get(name), 1.004), (X,))
    packed = {name: copy.deepcopy(packed[name]) for name in programs}
    planning = MemoryPlanningPass(share_mutable_buffers=True)
    pte = write("state.pte", lowered(packed, memory_planning_pass=planning).buffer)
    config = {"inputs": 1, "steps": 2, "latency": {"seconds": 0}}
    validation = validate_package(
        pte,
        (),
        programs,
        dict.fromkeys(programs, SETS),
        ValidateConfig(**config | settings),
        {},
        quantized=by_steps,
        sequences=None,
    )
    for result in validation.methods:
        assert check_of(METHOD_OUTLINE)(result.to_json())
    return {result.method: result for result in validation.methods}


READER = {"prefill": Write, "decode": Read}
READERS = {**READER, "again": Read}
PASSED_ON = {"prefill": Write, "pass": Pass, "decode": ReadNext}


@pytest.mark.parametrize("methods", [READERS, {"prefill": Write, "decode": Add}, PASSED_ON])
def test_a_float_method_is_compared_on_the_state_that_quantized_methods_write(methods):
    results = validated(methods, {"prefill": 8})
    assert {result.verdict for result in results.values()} == {"passed"}
    for name in methods.keys() - {"prefill", "pass"}:
        result = results[name]
        assert result.worst()["max_abs"] < 1e-6  # as with no quantization
        loss = result.quantization
        assert loss["verdict"] == "not judged" and loss["writers"] == ["prefill"]
        assert loss["reason"].endswith(
            "lost in the quantization of 'prefill', whose state it reads"
        )
        assert 20 < loss["figures"]["sqnr_db"] < 40
    assert "pass" not in results or results["pass"].quantization is None


@pytest.mark.parametrize(
    ("methods", "wrong"),
    [(READER, "decode"), (READER, "prefill"), (PASSED_ON, "pass")],
)
def test_a_fault_does_not_hide_in_the_noise_of_quantization(methods, wrong):
    results = validated(methods, {"prefill": 64}, [wrong])
    decode = results["decode"]
    assert decode.verdict == "failed"
    assert all(failure["about"] == "" for failure in decode.failures)
    assert decode.quantization["verdict"] == "not judged"


def test_limits_of_the_config_judge_what_the_writer_loses():
    strict = validated(READER, {"prefill": 64}, methods={"decode": {"atol": 1e-3}})["decode"]
    assert strict.verdict == "passed" and strict.quantization["verdict"] == "failed"
    ending = ", against the float programs: lost in the quantization of 'prefill', whose state"
    assert all(ending in failure["what"] for failure in strict.failures)
    wide = validated(READER, {"prefill": 64}, methods={"decode": {"min_sqnr": 20.0}})["decode"]
    assert wide.verdict == wide.quantization["verdict"] == "passed"
    # Without an effect of quantization, the same limits judge the lowering alone.
    exact = validated(READER, {"prefill": 2**30}, ["decode"], methods={"decode": {"atol": 1e-3}})
    assert {failure["about"] for failure in exact["decode"].failures} == {""}


def test_calls_before_the_writer_lose_nothing():
    decode = validated({"decode": Read, "prefill": Write}, {"prefill": 8}, inputs=0)["decode"]
    assert decode.quantization["examples"][0]["calls"] == 3  # the last call of each round


def test_what_depends_on_no_quantized_state_has_no_loss():
    results = validated(READER, {"decode": 64})
    assert results["prefill"].quantization is None
    assert validated(READER, {"prefill": 2**40})["decode"].quantization is None


@pytest.mark.parametrize("limits", [{}, {"atol": 1e-3}])
def test_a_quantized_method_reads_what_float_ones_write(limits):
    """Also what a float method writes that is judged by limits of the config."""
    settings = {"methods": {"prefill": limits}}
    assert validated(READER, {"decode": 64}, **settings)["decode"].verdict == "passed"
    wrong = validated(READER, {"decode": 64}, ["prefill"], **settings)["decode"]
    assert wrong.verdict == "failed"


def test_rounding_is_measured_on_the_state_that_all_methods_write():
    """A method that the config limits isn't rounded for its own limits, but writes for others."""
    settings = {"methods": {"prefill": {"atol": 1e-3}}}
    assert validated(READER, {}, **settings)["decode"].verdict == "passed"
    assert validated(READER, {}, ["decode"], **settings)["decode"].verdict == "failed"
