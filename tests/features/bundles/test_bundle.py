"""Bundled programs, run and compared by ExecuTorch's runtime."""

import json

import pytest
import torch

from pipeline.config.validation import ValidateConfig
from pipeline.devices.bindings import _merge
from pipeline.features.bundles.bundle import (
    BundleCases,
    bundle,
    describe_bundle,
    find_tolerances,
    measure_case,
)
from pipeline.program.inputs import InputSet
from pipeline.program.runtime_bindings import import_bindings
from pipeline.validate.limits import Limits
from pipeline.validate.method_result import MethodValidation
from pipeline.validate.metrics import compare
from pipeline.validate.package import validate_package
from pipeline.validate.runs import JudgedCall
from tests.devices.test_bindings import Counter, exported, lowered, split_package, write
from tests.support.lowerable import bench_for

CONFIG = {
    "methods": {
        "features": {
            "quantize": {"quantizer": "xnnpack"},
            "partitioners": ["xnnpack"],
        },
        "classify": {"partitioners": []},
    },
    "constant_methods": {"get_classes": 10},
    "validate": {
        "bundle": True,
        "atol": 1e-4,
        "rtol": 1e-3,
        "methods": {"features": {"atol": 0.2}},
    },
}


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    bench = bench_for(tmp_path_factory.mktemp("bundle"), {"phone": CONFIG})
    assert bench.doit(timeout=900) == 0, bench.output
    return bench


def open_bundle(data):
    """Open a bundle with ExecuTorch's bindings, which keep no copy of the bytes."""
    import executorch.kernels.quantized  # noqa: F401

    return import_bindings()._load_bundled_program_from_buffer(data, 1 << 24)


def verify(data, method, case, **tolerances):
    """Return the outputs. Raises RuntimeError if they aren't what the bundle expects."""
    return open_bundle(data).verify_result_with_bundled_expected_output(method, case, **tolerances)


def bundled(pte, programs, examples=None, ptds=(), not_run=None, limit=1 << 20, **settings):
    """Return the bundle of a validation's runs, its suites, and the validation."""
    suites = BundleCases(limit)
    validation = validate_package(
        pte,
        ptds,
        programs,
        examples or {},
        ValidateConfig(**{"atol": 1e-5, "rtol": 1e-5, "inputs": 2, **settings}),
        {},
        not_run,
        keep=suites.keep,
    )
    assert validation.ok, validation.failures
    return bundle(pte, suites), suites


def one(module, *args, shapes=None, **more):
    program = exported(module, *args, shapes=shapes)
    pte = write("bundled.pte", lowered({"run": program}).buffer)
    return bundled(pte, {"run": program}, **more)


def told(bench):
    return json.loads(bench.bytes_of("phone", "report.json"))["bundle"]


@pytest.mark.slow
def test_the_runtime_verifies_every_case_with_the_tolerances_of_the_report(bench):
    data, record = bench.bytes_of("phone", "phone.bpte"), told(bench)
    assert record["file"] == "phone.bpte" and record["size"] == len(data)
    assert set(record["methods"]) == {"features", "classify"}
    for method, suite in record["methods"].items():
        random = [f"generated {number} (seed 0)" for number in range(3)]
        zeros = ["generated 3 (seed 0): zeros"] if method == "classify" else []  # not quantized
        assert suite["cases"] == ["example 0", *zeros, *random]
        assert not suite["left_out"] and not suite["state"]
        for case in range(len(suite["cases"])):
            verify(data, method, case, rtol=suite["rtol"], atol=suite["atol"])
    assert record["methods"]["features"]["atol"] == 0.2
    assert record["methods"]["classify"]["atol"] == 1e-4
    assert "| `features` | 4 | 0.001 | 0.2 |" in bench.bytes_of("phone", "report.md").decode()


@pytest.mark.slow
def test_a_case_expects_what_the_source_gives_not_the_package(bench):
    data = bench.bytes_of("phone", "phone.bpte")
    with pytest.raises(RuntimeError, match="verification failed"):  # int8 is not float32
        verify(data, "features", 0, rtol=0, atol=1e-6)


@pytest.mark.slow
def test_it_holds_the_package(bench):
    from executorch.devtools.bundled_program.serialize import (
        deserialize_from_flatbuffer_to_bundled_program,
    )

    read = deserialize_from_flatbuffer_to_bundled_program(bench.bytes_of("phone", "phone.bpte"))
    assert bytes(read.program) == bench.bytes_of("phone", "phone.pte")
    assert [suite.method_name for suite in read.method_test_suites] == ["classify", "features"]


@pytest.mark.slow
def test_another_build_gives_the_same_bytes(bench):
    before = bench.bytes_of("phone", "phone.bpte")
    cold = {"PTE_PIPELINE_STORE": str(bench.root / ".empty"), "PYTHONHASHSEED": "7"}
    assert bench.doit("-n", "1", "-a", timeout=900, **cold) == 0, bench.output
    assert bench.bytes_of("phone", "phone.bpte") == before


@pytest.mark.slow
def test_one_that_went_comes_back_and_one_that_is_not_wanted_goes(bench):
    path, before = bench.root / "build/phone/phone.bpte", bench.bytes_of("phone", "phone.bpte")
    path.unlink()
    assert bench.doit(timeout=900) == 0, bench.output
    assert path.read_bytes() == before
    config = "partition_configs/phone.yaml"
    bench.edit(config, "bundle: true", "bundle: false")
    assert bench.doit(timeout=900) == 0, bench.output
    assert not path.exists()
    assert "bundle" not in json.loads(bench.bytes_of("phone", "report.json"))
    bench.edit(config, "bundle: false", "bundle: true")
    assert bench.doit(timeout=900) == 0, bench.output
    assert path.read_bytes() == before
    assert bench.outcomes()["validate phone"] == "hit"


def test_methods_with_state_are_bundled_from_their_initial_state():
    data, suites = one(Counter(), torch.ones(3), steps=3, inputs=2)
    assert list(suites.cases["run"]) == [
        "generated 0 (seed 0)",
        "generated 1 (seed 0)",
    ]
    for _ in range(2):  # the runtime reloads a method for each
        for case in range(2):
            verify(data, "run", case)


class Wide(torch.nn.Module):
    """Dynamic sizes, another dim order, a number, several dtypes and a mutated input."""

    def forward(self, x, k, counts):
        counts.add_(1)
        y = torch.nn.functional.avg_pool2d(x, 2).to(memory_format=torch.channels_last)
        return y * k, x.to(torch.float16), x > 0, counts * 2


def test_layouts_numbers_and_dtypes():
    x = torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last)
    rows = {0: torch.export.Dim("rows", min=1, max=6)}
    strided = torch.randn(4, 4, 3, 5).permute(3, 2, 0, 1)
    data, suites = one(
        Wide(),
        x,
        3,
        torch.arange(4),
        shapes=(rows, None, None),
        inputs=3,
        examples={"run": [InputSet((strided, 3, torch.ones(4, dtype=torch.int64)))]},
    )
    assert not suites.left_out and len(suites.cases["run"]) == 4
    for case in range(4):
        verify(data, "run", case, rtol=1e-5, atol=1e-6)


def test_what_this_machine_cannot_run_is_bundled_for_one_that_can():
    reason = "CoreMLBackend: runs on Apple's machines only"
    data, suites = one(Counter(), torch.ones(3), not_run={"run": reason})
    assert len(suites.cases["run"]) == 2
    verify(data, "run", 1)


def test_what_cannot_run_here_has_tolerances_for_a_device():
    program = exported(torch.nn.GELU(), torch.ones(3))
    pte = write("bundled.pte", lowered({"run": program}).buffer)
    for quantized in ({}, {"run": exported(torch.nn.ReLU(), torch.ones(3))}):
        suites = BundleCases(1 << 20)
        validation = validate_package(
            pte, (), {"run": program}, {}, ValidateConfig(), {}, {"run": "needs a phone"},
            keep=suites.keep, quantized=quantized,
        )  # fmt: skip
        suite = describe_bundle(suites, validation.methods)["run"]
        noise = (torch.nn.GELU()(torch.tensor(-0.7)) - 0).abs().item()  # close to the maximum
        least, most = (noise, 2.5 * noise) if quantized else (1e-6, 1e-3)
        assert least < suite["atol"] < most
        assert suite["rtol"] == (0 if quantized else 1e-3)


def test_tolerances_are_those_of_the_worst_input_that_is_bundled():
    """Static ranges were observed on examples, and generated inputs exceed them."""
    limits = (Limits(atol=None, rtol=None, min_sqnr=20.0),)
    runs = [
        JudgedCall(
            origin, (compare(torch.tensor([1 + error]), torch.ones(1)),), limits=limits, **kind
        )
        for origin, error, kind in (
            ("example 0", 0.001, {}),
            ("generated 0", 0.1, {"generated": True}),
            ("generated 1", 5.0, {"generated": True, "case": "large"}),
        )
    ]
    validation = MethodValidation("classify", runs=runs)
    assert find_tolerances(validation) == (pytest.approx(0.2, rel=1e-3), 0.0)


class Counts(torch.nn.Module):
    def forward(self, x):
        return x * 2, x.shape[0] + 1


def test_what_cannot_be_expressed_is_left_out_and_told():
    rows = {0: torch.export.Dim("rows", min=1, max=6)}
    data, suites = one(Counts(), torch.ones(3), shapes=(rows,))
    assert suites.left_out == {
        "run": [("", "output 1 is not a tensor; a bundled program compares only tensors")]
    }
    assert not suites.cases["run"]
    open_bundle(data)
    half = one(torch.nn.ReLU(), torch.ones(3, dtype=torch.bfloat16))[1]
    assert half.left_out == {
        "run": [("", "output 0 is bfloat16, which the runtime compares bit by bit")]
    }


def test_large_cases_are_left_out():
    rows = {0: torch.export.Dim("rows", min=1, max=1000)}
    _, suites = one(torch.nn.ReLU(), torch.ones(3), shapes=(rows,), inputs=3, limit=8000)
    least, greatest, between = (2 * 4 * rows for rows in (1, 1000, 522))
    assert [measure_case(case) for case in suites.cases["run"].values()] == [least, between]
    ((origin, reason),) = suites.left_out["run"]
    assert origin.startswith("generated 1")
    assert reason == "8.0 kB, and 8.0 kB of bundle_limit 8.0 kB are left"
    assert greatest + least > 8000


def test_external_data_stand_beside_a_bundle():
    """The runtime's own verification takes no `.ptd`; opened with one, the package runs."""
    pte, ptds, program = split_package()
    data, suites = bundled(pte, {"forward": program}, ptds=ptds)
    opened, ptd = open_bundle(data), _merge([ptd.read_bytes() for ptd in ptds])
    module = import_bindings()._load_for_executorch_from_bundled_program(opened, ptd)
    for inputs, expected in suites.cases["forward"].values():
        (actual,) = module.run_method("forward", tuple(inputs))
        torch.testing.assert_close(actual, expected[0])
