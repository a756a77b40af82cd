"""Configs that name devices, devices by name, and the table of a report."""

import pytest
import torch

from pipeline.devices.registry import Registry
from pipeline.features.gates.kinds import find_gates
from pipeline.features.native.calls import CallLog, KeptCall
from pipeline.features.native.planning import DEVICE_GATES, NativePlanning, summarize
from pipeline.features.native.section import overview, section
from pipeline.features.native.target_devices import find_devices, find_planned_devices
from pipeline.plan.plan import Plan
from pipeline.report.packages import Entry
from pipeline.store.errors import PipelineError
from pipeline.store.workspace import open_workspace
from pipeline.validate.runs import JudgedCall

CONFIG = "model: one\nmethods: {{forward: {{partitioners: []}}}}\nvalidate: {{devices: {}}}\n"
RAN = {
    "verdict": "passed",
    "calls": 3,
    "of_limit": 0.02,
    "worst": "example 0",
    "load_ms": 1.5,
    "run_ms": 0.25,
    "repeats": 20,
    "differing": 0,
    "memory": {"at_start": 5_000_000, "peak": 8_000_000, "planned": 0, "method": 9, "temporary": 0},
    "reason": "",
}


@pytest.fixture
def plan_of(tmp_path):
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "one.py").write_text("def export_methods(): ...\n")
    (tmp_path / "partition_configs").mkdir()

    def make(devices):
        config = tmp_path / "partition_configs" / "one.yaml"
        config.write_text(CONFIG.format(devices))
        return Plan(open_workspace(tmp_path))

    return make


def test_a_device_that_there_is_not_is_a_mistake(plan_of):
    [problem] = plan_of("[nativ]").problems("one")
    assert problem.path == "validate.devices[0]"
    assert problem.what == "no device 'nativ'"
    assert "native" in str(problem)


def test_devices_that_there_are(plan_of):
    plan = plan_of("[native, qemu:cortex-a72, interpreter]")
    assert not plan.problems("one")
    assert plan.configs.summary("one").features["native"] == {
        "devices": ["native", "qemu:cortex-a72", "interpreter"]
    }


def test_an_address_is_no_name_of_a_device(plan_of):
    [problem] = plan_of("['ssh://pi@pi5.local']").problems("one")
    assert problem.path == "validate.devices[0]"
    rule = "must be a device: native, qemu:cortex-a72, or the name of a board"
    assert problem.what == f"is 'ssh://pi@pi5.local', {rule}"


def test_boards_are_devices_by_the_names_of_a_setting(plan_of, tmp_path):
    (tmp_path / "pyproject.toml").write_text(
        '[tool.pte-pipeline.native_boards]\npi5 = "ssh://pi@pi5.local"\n'
    )
    assert not plan_of("[native, pi5]").problems("one")
    [problem] = plan_of("[pi4]").problems("one")
    assert problem.what == "no device 'pi4'" and "pi5" in str(problem)


def test_a_gate_on_a_device_that_the_config_does_not_name_is_a_mistake(plan_of, tmp_path):
    gates = "[native]\n  gates: {max_latency: {native: 20, natve: 30}}\n"
    gates += "  methods: {forward: {gates: {max_peak_memory: {'qemu:max': 1MB}}}}"
    path = tmp_path / "partition_configs" / "one.yaml"
    text = CONFIG.format("X").replace("{devices: X}", f"\n  devices: {gates}")
    plan_of("[]")
    path.write_text(text)
    package, method = Plan(open_workspace(tmp_path)).problems("one")
    assert package.path == "validate.gates.max_latency.natve" and "one.yaml:5" in str(package)
    assert package.what == "validate.devices does not name 'natve'"
    assert "did you mean 'native'?" in str(package)
    assert "qemu:max" in method.path and method.path.startswith("validate.methods.forward.gates")


def test_gates_alone_name_a_device(plan_of, tmp_path):
    plan_of("[]")
    text = CONFIG.format("X").replace("devices: X", "gates: {max_load_time: {native: 9}}")
    (tmp_path / "partition_configs" / "one.yaml").write_text(text)
    [problem] = Plan(open_workspace(tmp_path)).problems("one")
    assert str(problem).endswith("validate.devices does not name 'native'; known: none")


def test_the_gates_that_take_a_limit_for_each_device():
    assert set(DEVICE_GATES) == {gate.name for gate in find_gates() if gate.by_device}


@pytest.fixture
def plan_for_target(plan_of, tmp_path):
    """Return a plan of a package with devices and a target in its config, and `targets/pi.yaml`."""

    def make(target, named="[]", name="pi"):
        plan_of("[]")
        (tmp_path / "targets").mkdir(exist_ok=True)
        (tmp_path / "targets" / "pi.yaml").write_text(target)
        text = CONFIG.format(named) + f"target: {name}\n"
        (tmp_path / "partition_configs" / "one.yaml").write_text(text)
        return Plan(open_workspace(tmp_path))

    return make


def test_a_package_is_validated_on_the_devices_of_its_target(plan_for_target):
    plan = plan_for_target("devices: [native, 'qemu:max']\n", "['qemu:max', interpreter]")
    assert not plan.problems("one")
    devices = ("qemu:max", "interpreter", "native")
    assert find_planned_devices(plan, "one") == devices
    config = plan.configs.config("one")
    planning = NativePlanning(plan)
    assert find_devices(config, plan.workspace.root) == devices
    held_to = planning.held_to("one", {}, config)["devices"]
    assert tuple(held_to) == devices
    assert planning.validate_facts("one", {}) == held_to
    assert planning.find_devices("one") == devices
    again = plan_for_target("devices: [native]\n")
    assert find_planned_devices(again, "one") == ("native",)
    assert NativePlanning(again).validate_facts("one", {}) != held_to  # so it runs again


@pytest.mark.parametrize(
    "target", ["backends: [xnnpack]\n", "devices: []\n", "devices: 3\n", "- 1\n"]
)
def test_a_target_without_devices_changes_no_key(plan_for_target, target, monkeypatch):
    """No query for devices either: the entry points of each package took 40 ms of a no-op."""
    plan = plan_for_target(target)
    planning = NativePlanning(plan)
    monkeypatch.setattr(planning, "_plugins", None)
    assert planning.problem_facts("one") == []
    assert find_planned_devices(plan, "one") == ()
    assert planning.held_to("one", {}, plan.configs.config("one")) == {}
    assert not planning.validate_facts("one", {})


def test_mistakes_in_the_devices_of_a_target(plan_for_target):
    """A target can't name an address: only settings say where a build connects to."""
    [unknown] = plan_for_target("devices: [nativ]\n").problems("one")
    assert unknown.path == "target" and "one.yaml:4" in str(unknown)
    assert "targets/pi.yaml: devices: no device 'nativ'; did you mean 'native'?" in str(unknown)
    [address] = plan_for_target("devices: ['ssh://pi@pi5.local']\n").problems("one")
    assert str(address).startswith("targets/pi.yaml:1: devices[0]: ")
    assert plan_for_target("devices: [nativ]\n", name="other").problems("one") == ()


def test_a_target_that_variables_choose_is_not_kept(plan_for_target):
    plan = plan_for_target("devices: [native]\n")
    assert summarize(plan.configs.config("one"), True) == {"devices": [], "target": "*"}


def test_a_package_without_devices_has_no_part(plan_of):
    assert "native" not in plan_of("[]").configs.summary("one").features


def test_a_family_of_devices_is_given_what_follows_its_name():
    registry = Registry()
    registry.register("board:<address>", lambda address: address)
    registry.register("board", lambda: "any")
    assert registry.get("board:10.0.0.1") == "10.0.0.1"
    assert registry.get("board") == "any"
    with pytest.raises(PipelineError, match=r"no device 'bord:1'; .*known: board, board:<address>"):
        registry.get("bord:1")


def test_the_table_has_a_column_for_each_device():
    emulated = {
        **RAN,
        "verdict": "failed",
        "differing": 2,
        "memory": {"planned": 2048, "method": 0, "temporary": 0},
    }
    missing = {"verdict": "not run", "reason": "cmake is not installed"}
    report = {
        "methods": [
            {"method": "encode", "devices": {"native": RAN, "qemu:max": emulated}},
            {"method": "decode", "devices": {"native": RAN, "qemu:max": missing}},
            {"method": "get_length"},
        ]
    }
    [table] = [part for part in section(report).parts if getattr(part, "name", "") == "devices"]
    assert table.columns == ["method", "native", "qemu:max"]
    native, failed = table.rows[0]["native"], table.rows[0]["qemu:max"]
    assert native.text == "passed"
    assert native.note == "0.0200 × limit, load 1.5 ms, call 0.25 ms, 8.0 MB at most"
    assert failed.kind == "bad"
    assert failed.note.endswith("2.0 kB allocated, different bytes in 2 of 20 repeated calls")
    assert table.rows[1]["qemu:max"].note == "cmake is not installed"
    assert len(table.rows) == 2
    counts = "native: 2 passed. qemu:max: 1 failed, 1 not run."
    assert section(report).parts[0] == counts


def test_the_methods_that_a_device_fails_come_first():
    failed = RAN | {"verdict": "failed", "reason": "is too large"}
    methods = [
        {"method": "encode", "devices": {"native": RAN}},
        {"method": "decode", "devices": {"native": failed}},
    ]
    [table] = [p for p in section({"methods": methods}).parts if not isinstance(p, str)]
    assert [row["method"].text for row in table.rows] == ["decode", "encode"]
    [overviewed] = overview([Entry("phone", {"methods": methods})]).parts
    assert [row["verdict"].text for row in overviewed.rows] == ["failed", "passed"]
    assert "latency growth" not in overviewed.columns


def make_call(step, size, sequence="example 0"):
    judged = JudgedCall("example 0", (), step, sequence)
    expected = [torch.zeros(size, dtype=torch.uint8)]
    return KeptCall("count", [2], expected, judged, ["total"])


def test_a_sequence_is_cut_where_there_is_no_more_room(monkeypatch):
    """Calls after a call that isn't kept would continue from another state."""
    monkeypatch.setattr("pipeline.features.native.calls._MOST_BYTES", 100)
    log = CallLog()
    first, second = make_call(1, 60), make_call(2, 60)
    third, alone = make_call(3, 10), make_call(0, 10)
    for call in (first, second, third, alone):
        log.add(call)
    assert log.sequences == [[first], [alone]]
    assert log.left_out == {"count": 2}
    assert first.where == "example 0 (call 1 from example 0)" and alone.where == "example 0"
