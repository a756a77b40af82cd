"""Packages on the real runner, built here, give what the bindings give.

This needs the C++ SDK of a wheel of ExecuTorch 1.5 or later, in this environment or at
PTE_PIPELINE_NATIVE_SDK, and for emulated processors the aarch64 SDK.
"""

import json
import os
import random
import re
from pathlib import Path

import pytest
import torch
from executorch.devtools import Inspector
from executorch.exir.passes import MemoryPlanningPass

from pipeline.config.validation import Limits
from pipeline.devices.interface import PackageFiles
from pipeline.devices.package_data import read_package
from pipeline.devices.session import Session
from pipeline.features.native.asking import find_lacks
from pipeline.features.native.build import find_command
from pipeline.features.native.calls import CallLog, KeptCall
from pipeline.features.native.device import NativeDevice
from pipeline.features.native.process import VALUES, RunnerProcess
from pipeline.features.native.setups import find_setup
from pipeline.features.native.verdicts import run_calls
from pipeline.store.errors import DeviceError
from pipeline.store.workspace import open_workspace
from pipeline.validate.budget import Budget
from pipeline.validate.runs import JudgedCall
from tests.devices.test_bindings import (
    CONSTANTS,
    Counter,
    Encoder,
    X,
    exported,
    lowered,
    package_file,
)

MUTATIONS = int(os.environ.get("RUNNER_MUTATIONS", "0"))
EMULATED = "qemu:cortex-a72"

pytestmark = pytest.mark.slow


def open_device(name, root=Path("/"), seconds=60.0):
    problem = find_setup(name, root).problem
    if problem:
        pytest.skip(f"{name}: {problem}")
    return NativeDevice(name, root, seconds)


@pytest.fixture(scope="module", params=["native", EMULATED])
def device(request):
    return open_device(request.param)


@pytest.fixture(scope="module")
def files():
    return PackageFiles.of(package_file())


def test_outputs_are_those_of_the_bindings(device, files):
    calls = {
        "encode": (torch.arange(8.0).reshape(2, 4),),
        "embed": (torch.tensor([6, 0, 2]), torch.tensor(0.5)),
        "pass": (X, 2),
    }
    host = Session(files)
    for method, values in calls.items():
        expected = host.run(method, values)
        actual = device.call(device.load(files, method), values)
        torch.testing.assert_close(actual, expected, rtol=1e-6, atol=1e-6)
    for method, value in CONSTANTS.items():
        outputs = device.call(device.load(files, method), ())
        assert outputs == (value if isinstance(value, list) else [value])


def test_state_goes_on_from_call_to_call_and_begins_anew(device, files):
    first = device.load(files, "count")
    totals = [device.call(first, (X,))[0] for _ in range(2)]
    second = device.load(files, "count")
    assert torch.equal(totals[0], 2 * X) and torch.equal(totals[1], 4 * X)
    assert torch.equal(device.call(second, (X,))[0], 2 * X)
    assert torch.equal(device.call(first, (X,))[0], 6 * X)


def test_figures_of_a_call(device, files):
    methods, name = device.load(files, "encode")
    _, milliseconds, differing = methods.call(name, (torch.ones(4, 4),), 5)
    assert len(milliseconds) == 5 and min(milliseconds) > 0 and differing == 0
    memory = methods.measure_memory()
    assert memory["peak"] >= memory["at_start"] > 2**20
    assert memory["planned"] == sum(files.plans["encode"].arenas)
    assert methods.load_ms > 0
    _, _, differing = device.load(files, "count")[0].call("count", (X,), 4)
    assert differing == 3  # it has state


@pytest.mark.parametrize(
    ("method", "values", "reason"),
    [
        ("encode", (torch.ones(11, 4),), r"fails: .* \(0x10\)"),
        ("encode", (torch.ones(4, 4, dtype=torch.int64),), r"fails: wrong dtype .* \(0x12\)"),
        ("encode", (), r"fails: wrong dtype or number of inputs.* \(0x12\)"),
        ("absent", (), r"does not load: .* \(0x12\)"),
    ],
)
def test_what_the_runtime_refuses_is_said(device, files, method, values, reason):
    with pytest.raises(DeviceError, match=reason):
        device.call(device.load(files, method), values)


def test_an_operator_that_refuses_its_inputs_is_named(device, files):
    with pytest.raises(DeviceError, match="in operator aten::embedding") as raised:
        device.call(device.load(files, "embed"), (torch.tensor([1, 2, 9]), torch.tensor(1.0)))
    assert raised.value.instruction == 0


def test_methods_share_state_on_the_real_runtime():
    """`count` and `again` have a buffer of the same name, which the package shares."""
    device = open_device("native")
    programs = {name: exported(Counter(), torch.ones(3)) for name in ("count", "again")}
    planning = MemoryPlanningPass(share_mutable_buffers=True)
    data = lowered(programs, memory_planning_pass=planning).buffer
    files = PackageFiles("shared.pte", data)
    loaded = device.load_together(files, ["count", "again"])
    assert torch.equal(device.call(loaded["count"], (X,))[0], 2 * X)
    assert torch.equal(device.call(loaded["again"], (X,))[0], 4 * X)
    apart = device.load(files, "again")
    assert torch.equal(device.call(apart, (X,))[0], 2 * X)


def test_a_runtime_tells_its_operators(device, files):
    registered = device.list_operators(files)
    assert registered == sorted(set(registered)) and "aten::add.out" in registered
    needed = {operator for plan in files.plans.values() for operator in plan.operators}
    assert needed and needed <= set(registered)


def test_an_operator_that_the_runtime_lacks_is_named_before_anything_runs(device, files):
    class Lacking(NativeDevice):
        def list_operators(self, files):
            return [name for name in device.list_operators(files) if "embedding" not in name]

        def load(self, files, method):
            raise AssertionError("nothing is to run")

    log = CallLog()
    judged = JudgedCall("example 0", (), 0, "example 0")
    log.add(KeptCall("embed", [torch.tensor([1]), torch.tensor(1.0)], [X], judged, ["[0]"]))
    outcomes, left_out = run_calls(Lacking(device.name, Path("/")), files, log, Budget())
    assert outcomes["embed"].lacks.startswith("its runner has no kernel for aten::embedding.out; ")
    assert not outcomes["embed"].faults and not outcomes["embed"].calls and not left_out


def test_a_device_is_asked_what_its_runtime_lacks(device, tmp_path, monkeypatch):
    workspace = open_workspace(tmp_path)
    assert find_lacks(workspace, device.name, [package_file()]) == {}
    registered = NativeDevice.list_operators

    def list_others(self, files):
        return [name for name in registered(self, files) if "embedding" not in name]

    monkeypatch.setattr(NativeDevice, "list_operators", list_others)
    lacks = find_lacks(workspace, device.name, [package_file()])
    assert lacks == {"embed": ["has no kernel for aten::embedding.out"]}


@pytest.mark.parametrize(("seconds", "timed"), [(600.0, True), (1e-9, False)])
def test_a_spent_budget_leaves_calls_out_that_are_only_timed(device, files, seconds, timed):
    log = CallLog()
    limits = (Limits(atol=1e-5),)
    judged = JudgedCall("example 0", (), 0, "example 0", limits=limits)
    x = torch.ones(2, 4)
    log.add(KeptCall("encode", [x], [Encoder()(x).detach()], judged, ["[0]"]))
    outcomes, _ = run_calls(device, files, log, Budget(seconds))
    assert not outcomes["encode"].faults and outcomes["encode"].calls == 1
    assert bool(outcomes["encode"].repeats) == bool(outcomes["encode"].timed_ms) == timed


def test_an_inspector_reads_what_the_runner_records(files, tmp_path):
    """These are times of the delegate and of the operators inside it, and the delegate's values."""
    device = open_device("native")
    methods = device.load_traced(files, ["encode"], VALUES)
    outputs, times, _ = methods.call("encode", (torch.ones(4, 4),), 5, warm_up=2)
    dump, values = methods.take_trace()
    (tmp_path / "encode.etdp").write_bytes(dump)
    (tmp_path / "values.bin").write_bytes(values)
    inspector = Inspector(
        etdump_path=str(tmp_path / "encode.etdp"), debug_buffer_path=str(tmp_path / "values.bin")
    )
    [block] = inspector.event_blocks
    events = {event.name: event for event in block.events}
    assert len(events["DELEGATE_CALL"].perf_data.raw) == 5
    assert 0 < events["DELEGATE_CALL"].perf_data.p50 <= max(times)
    assert any("Fully Connected" in name for name in events)
    assert any(torch.equal(value, outputs[0]) for value in events["DELEGATE_CALL"].debug_data)


def test_peak_memory_is_that_of_proc(files):
    device = open_device("native")
    process = RunnerProcess(find_command(find_setup("native", Path("/"))), files, 60)
    group, _ = process.load(["encode"])
    process.call(group, "encode", (torch.ones(4, 4),), ())
    peak = process.measure_memory(group)["peak"]
    status = Path(f"/proc/{process._process.pid}/status").read_text()
    process.close()
    expected = int(re.search(r"VmHWM:\s+(\d+)", status)[1]) * 1024
    assert device.name == "native" and abs(peak - expected) <= 0.05 * expected


@pytest.fixture(scope="module")
def sanitized():
    """Return the command of a runner that stops at memory errors of its own code."""
    if not MUTATIONS:
        pytest.skip("RUNNER_MUTATIONS is not set")
    open_device("native")
    return find_command(find_setup("native", Path("/")), ["-DSANITIZE=ON"])


def mutate(content, seed):
    """Change some bytes of a file, most of them in its flatbuffer, or truncate it."""
    chosen = random.Random(seed)
    damaged = bytearray(content)
    if seed % 10 == 0:
        return bytes(damaged[: chosen.randrange(len(damaged))])
    for _ in range(chosen.choice([1, 2, 8, 64])):
        place = int(len(damaged) * chosen.random() ** 2)
        damaged[place] = chosen.choice([0, 1, 0x7F, 0x80, 0xFF, chosen.randrange(256)])
    return bytes(damaged)


def find_culprits(folder):
    """Return the place of each reported memory error: the first frame outside the sanitizer."""
    culprits = []
    for report in folder.glob("report.*"):
        frames = re.findall(r"^ +#\d+ \w+ (.*)", report.read_text(errors="replace"), re.MULTILINE)
        named = [frame for frame in frames if "interceptor" not in frame and "asan" not in frame]
        culprits.append(named[0] if named else report.read_text(errors="replace"))
    return culprits


def test_damaged_files_cause_no_memory_error_of_the_runner(sanitized, tmp_path, monkeypatch):
    """The runtime may refuse a file or end the process; RUNNER_MUTATIONS sets the attempts."""
    monkeypatch.setenv("ASAN_OPTIONS", f"log_path={tmp_path}/report")
    programs = {"encode": exported(Encoder(), torch.ones(4, 4))}
    made = lowered(programs, external_constants=True)
    (data,) = made._tensor_data.values()
    outcomes = {"ran": 0, "refused": 0, "ended": 0}
    for seed in range(MUTATIONS):
        pte, ptd = made.buffer, bytes(data)
        if seed % 3:
            pte = mutate(pte, seed)
        else:
            ptd = mutate(ptd, seed)
        try:
            process = RunnerProcess(sanitized, PackageFiles("damaged.pte", pte, (ptd,)), 60)
            group, _ = process.load(["encode"])
            process.call(group, "encode", (torch.ones(4, 4),), ())
            outcomes["ran"] += 1
        except DeviceError as error:
            outcomes["ended" if "the runner ended" in error.reason else "refused"] += 1
            if "the runner ended" in error.reason:
                print(error.reason)
    culprits = find_culprits(tmp_path)
    print(outcomes, *culprits, sep="\n")
    assert sum(outcomes.values()) == MUTATIONS and outcomes["refused"] > 0
    assert not [place for place in culprits if "/runner/" in place]


def test_a_validation_on_devices(bench):
    """The report has verdicts, figures and memory by device; methods share state on devices."""
    open_device("native")
    made = bench("stateful")
    config = made.root / "partition_configs" / "shared.yaml"
    config.write_text(config.read_text() + "validate: {devices: [native, qemu:max]}\n")
    assert made.doit("validate:shared", PTE_PIPELINE_NATIVE_SDK_AARCH64="") == 0, made.output
    folder = made.root / "build" / "shared"
    report = json.loads((folder / "report.json").read_text())
    assert report["verdict"] == "not run"
    for method in report["methods"]:
        assert method["verdict_reason"].startswith("not run on qemu:max: set native_sdk_aarch64")
        facts = method["devices"]["native"]
        assert facts["verdict"] == "passed"
        assert facts["calls"] == len(method["runs"])
        assert facts["memory"]["peak"] > 0
    assert "Verdicts by device" in (folder / "report.md").read_text()


def test_a_profile_of_a_method_that_needs_state_from_others(bench):
    """Its rows are the package's instructions, and an Inspector can read the written file."""
    open_device("native")
    made = bench("stateful")
    assert made.doit("lower:shared") == 0, made.output
    assert made.doit("profile", "shared/step", "--repeats", "4") == 0, made.output
    title, head, _, *rows, written = made.output.splitlines()
    assert re.fullmatch(r"shared/step on native: [\d.]+ ms a call, the median of 4", title)
    assert head.split()[-2:] == ["source", "line"]
    build = made.root / "build"
    plan = read_package(PackageFiles.of(build / "shared" / "shared.pte")).plans["step"]
    operators = {f"{op.name}.{op.overload}".rstrip(".") for op in plan.operators}
    names = {re.split(r" {2,}", row)[0] for row in rows}
    backends = {re.split(r" {2,}", row)[1] for row in rows}
    assert {name for name in names if "::" in name} == operators
    assert {delegate.id for delegate in plan.delegates} <= backends
    assert any("models/stateful.py:" in row for row in rows)
    shares = [float(share) for share in re.findall(r"([\d.]+) %", "\n".join(rows))]
    assert 90 <= sum(shares) <= 110  # each is a median
    dump, trace = (made.root / path for path in written.removeprefix("written: ").split(", "))
    [block] = Inspector(etdump_path=str(dump)).event_blocks
    [whole] = [event for event in block.events if event.name == "Method::execute"]
    assert len(whole.perf_data.raw) == 4  # only the method's, not its sequence's
    record = json.loads((dump.parent / "step.profile.json").read_text())["profile"]
    rows_ms = sum(row["ms"] for row in record["rows"])
    assert sum(record["modules"].values()) == pytest.approx(rows_ms, abs=1e-4)
    events = json.loads(trace.read_text())["traceEvents"]
    assert sum(event["name"] == "Method::execute" for event in events) == 4
    assert made.doit("profile", "shared/stap") == 1
    assert "has no method 'stap'; did you mean 'step'?" in made.output
    assert made.doit(
        "profile", "shared/step", "--on", "qemu:max", PTE_PIPELINE_NATIVE_SDK_AARCH64=""
    )
    assert "qemu:max: set native_sdk_aarch64 in" in made.output
    assert made.doit("profile", "split/step") == 1
    assert "split: its build is out of date" in made.output
