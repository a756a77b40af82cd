"""State that several methods give the same name: a config says whether they share it."""

import importlib.util
from types import SimpleNamespace

import pytest
import torch

from pipeline import load_package
from pipeline.plan.shared_state import SHARED, SPLIT, check_shared_state
from pipeline.run.prove.validate import _find_unsaid_sharing
from tests.support.bench import bench_of
from tests.support.configs import parse_config
from tests.support.documents import DOCUMENT

WRITTEN = {"shape": [2, 4], "dtype": "float32", "changed": True}
READ = {**WRITTEN, "changed": False}
WIDER = {**WRITTEN, "shape": [2, 8]}
HALF = {**READ, "dtype": "float16"}


def parsed(methods, planning):
    data = {"model": "m", "methods": {name: {"partitioners": []} for name in methods}}
    return parse_config("p", {**data, "emit": {"memory_planning": planning}}, "f.yaml")


def find(planning, **buffers):
    found = check_shared_state(parsed(buffers, planning), DOCUMENT, buffers, {})
    return [str(problem) for problem in found]


@pytest.mark.parametrize("second", [WRITTEN, READ])
def test_silence_is_a_mistake(second):
    (line,) = find({}, prefill={"cache": WRITTEN}, decode={"cache": second})
    assert line == (
        "f.yaml: emit.memory_planning.share_mutable_buffers: is missing: prefill, decode use the "
        f"same buffers (cache), and by default each has a copy; {SHARED} means one state for all "
        f"of them, {SPLIT} a copy for each"
    )
    for said in (True, False):
        assert not find(
            {"share_mutable_buffers": said}, prefill={"cache": WRITTEN}, decode={"cache": second}
        )


def test_other_settings_of_the_memory_do_not_say_it():
    assert find({"alignment": 64}, a={"cache": WRITTEN}, b={"cache": WRITTEN})


@pytest.mark.parametrize("second", [{}, {"other": WRITTEN}, {"cache": WIDER}, {"cache": HALF}])
def test_what_is_not_in_common_needs_no_word(second):
    assert not find({}, prefill={"cache": WRITTEN}, decode=second)


def test_tables_that_nobody_changes_need_no_word():
    assert not find({}, prefill={"table": READ}, decode={"table": READ})


def test_an_app_that_places_buffers_itself_needs_no_word():
    planning = {"alloc_mutable_buffers": False}
    assert not find(planning, prefill={"cache": WRITTEN}, decode={"cache": WRITTEN})


def test_different_buffers_of_one_name_cannot_share_memory():
    (line,) = find(
        {"share_mutable_buffers": True}, prefill={"cache": WRITTEN}, decode={"cache": WIDER}
    )
    assert line == (
        "f.yaml: emit.memory_planning.share_mutable_buffers: shares the memory of 'cache', which "
        "is float32 [2, 4] in prefill, float32 [2, 8] in decode; rename one of them, or set "
        f"{SPLIT}"
    )


def find_renamed(planning, **renamed):
    config = parsed(renamed, planning)
    return [str(problem) for problem in check_shared_state(config, DOCUMENT, {}, renamed)]


@pytest.mark.parametrize("planning", [{}, {"share_mutable_buffers": True}])
def test_a_tensor_of_two_names_cannot_be_shared(planning):
    (line,) = find_renamed(planning, prefill=(("model.cache", 0),), decode=(("cache", 0),))
    assert line == (
        "f.yaml: emit.memory_planning.share_mutable_buffers: 'model.cache' of prefill, 'cache' of "
        "decode share memory in the model, but methods share only buffers with the same name and "
        "shape; export the methods from modules that register it as a buffer of one name and "
        f"shape, and set {SHARED}, or set {SPLIT} for "
        "a copy in each"
    )


def test_many_tensors_of_two_names_are_one_mistake():
    buffers = [("mean", 0), ("variance", 1), ("batches", 2)]
    trunk = [(f"trunk.{name}", number) for name, number in buffers]
    (line,) = find_renamed({}, prefill=buffers, decode=trunk)
    assert "'mean' of prefill, 'trunk.mean' of decode share memory in the model (and so" in line
    assert "so do 2 more)" in line


def test_a_tensor_of_two_names_may_be_split_or_left_out():
    renamed = {"prefill": (("model.cache", 0),), "decode": (("cache", 0),)}
    assert not find_renamed({"share_mutable_buffers": False}, **renamed)
    assert not find_renamed({}, prefill=renamed["prefill"])


def test_validation_sees_what_planning_could_not():
    common = {"common_state": {"shared": False, "buffers": {"cache": ["prefill", "decode"]}}}

    def find_unsaid(planning, measured):
        inputs = SimpleNamespace(config=parsed(["prefill", "decode"], planning))
        return _find_unsaid_sharing(inputs, measured)

    (line,) = find_unsaid({}, common)
    assert line.startswith(
        "emit.memory_planning.share_mutable_buffers: is missing: prefill, decode"
    )
    assert SHARED in line and SPLIT in line
    assert find_unsaid({}, {}) == []
    assert find_unsaid({"share_mutable_buffers": False}, common) == []


def build_model(bench):
    path = bench.root / "models" / "stateful.py"
    spec = importlib.util.spec_from_file_location("stateful", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    model = module.build()
    return {name: method(model) for name, method in module.METHODS.items()}


def run_sequence(bench, package):
    """Return how far each call of a sequence diverges from the eager model."""
    loaded = load_package(bench.root / "build" / package / f"{package}.pte")
    eager = build_model(bench)
    generator = torch.Generator().manual_seed(0)
    errors = []
    for method in ("write", "step", "read", "step", "read"):
        x = torch.randn(2, 4, generator=generator)
        errors.append(float((loaded[method](x) - eager[method](x)).abs().max()))
    return errors


@pytest.mark.slow
def test_packages_keep_state_as_they_say(tmp_path):
    bench = bench_of("stateful", tmp_path)
    silent = bench.root / "partition_configs" / "silent.yaml"
    silent.write_text("model: stateful\ndefaults: {partitioners: [xnnpack]}\n")
    with silent.open("a") as file:
        file.write("methods: {write: {}, step: {}, read: {}}\n")
    assert bench.doit() == 1
    assert "silent.yaml: emit.memory_planning.share_mutable_buffers: is missing" in bench.output
    outcomes = bench.outcomes()
    assert {outcomes[f"validate {name}"] for name in ("shared", "split", "single")} == {"built"}
    assert max(run_sequence(bench, "shared")) < 1e-5
    write, step, *_ = run_sequence(bench, "split")
    assert write < 1e-5 < 1e-2 < step
    reports = {name: bench.bytes_of(name, "report.md").decode() for name in ("shared", "split")}
    assert "These methods share their state." in reports["shared"]
    assert "Each method has its own copy of these buffers" in reports["split"]
