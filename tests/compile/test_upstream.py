"""ExecuTorch's own delegation tests, run with this package's `to_backend` in place of theirs."""

from __future__ import annotations

import json

import pytest

from tests.support.bench import TESTS
from tests.support.resident import run_python

pytestmark = pytest.mark.slow
SCRIPT = TESTS / "support" / "upstream.py"
MODULES = (
    "test_backend_with_named_data_map",
    "test_backends_lifted",
    "test_backends_nested",
    "test_compatibility",
    "test_debug_handle_map",
    "test_delegate_map_builder",
    "test_graph_partition",
    "test_group_partitioner",
    "test_lowered_backend_module",
    "test_partitioner",
    "test_passes",
    "test_to_backend_multi_method",
    "test_utils",
)
# Tests that call no `to_backend`, but only partitions and passes.
NO_CALLS = {"test_graph_partition", "test_passes"}
# These lower MobileNet v3 and take as long as all others together.
LONG = (
    "TestBackendAPI.test_emit_lowered_backend_module",
    "TestBackendAPI.test_emit_nested_lowered_backend_module",
)
RUNTIME = "the runtime in the wheel lacks the demo backend"
# Tests that fail even with ExecuTorch's function, on any machine with just its wheel.
FAILS = {
    "test_backends_lifted": {
        "TestBackends.test_add_mul_partitioner": RUNTIME,
        "TestBackends.test_backend_with_compiler": RUNTIME,
        "TestBackends.test_backend_with_compiler_delegate_and_operator": RUNTIME,
        "TestBackends.test_backend_with_compiler_delegate_and_operator_with_two_modules": RUNTIME,
        "TestBackends.test_backend_with_compiler_out_of_range": RUNTIME,
        "TestBackends.test_lowered_add_mul": RUNTIME,
        "TestBackends.test_quantized_with_delegate": "loads a library from Meta's source tree",
    },
    "test_compatibility": {
        "TestCompatibility.test_compatibility_in_runtime": RUNTIME,
        "TestCompatibility.test_compatibility_in_runtime_edge_program_manager": RUNTIME,
    },
    "test_lowered_backend_module": {
        "TestBackendAPI.test_emit_lowered_backend_module_end_to_end": RUNTIME,
    },
    "test_partitioner": {"TestPartitioner.test_partitioner_splits_constant_data": RUNTIME},
    "test_to_backend_multi_method": {
        "TestToBackendMultiMethod.test_multi_method_end_to_end": RUNTIME,
    },
}


def run(whose: str, *arguments: str) -> dict[str, dict[str, dict[str, str]]]:
    done = run_python(str(SCRIPT), whose, *arguments, timeout=1800)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout)


def expected(found: dict[str, str], module: str) -> dict[str, str]:
    return {test: "failed" if test in FAILS.get(module, {}) else "passed" for test in found}


@pytest.fixture(scope="module")
def ours():
    return run("ours", *MODULES, *LONG)


@pytest.mark.parametrize("module", MODULES)
def test_the_same_pass_with_ours(ours, module):
    found = ours["outcomes"][module]
    assert found and set(FAILS.get(module, ())) <= set(found)
    assert found == expected(found, module)
    assert (ours["calls"].get(module, 0) > 0) == (module not in NO_CALLS)


def test_the_long_ones_pass_with_ours():
    others = list(FAILS["test_lowered_backend_module"])
    ours = run("ours", "test_lowered_backend_module", *others)
    found = ours["outcomes"]["test_lowered_backend_module"]
    assert set(LONG) <= set(found) and set(found.values()) == {"passed"}
    assert ours["calls"]["test_lowered_backend_module"] > 0


def test_the_same_fail_with_theirs():
    theirs = run("theirs", *FAILS, *(test for tests in FAILS.values() for test in tests))
    assert theirs["outcomes"] == {m: dict.fromkeys(tests, "failed") for m, tests in FAILS.items()}
    assert not theirs["calls"]
