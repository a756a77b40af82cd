"""The plan says what is stale and why, changes nothing, and needs no torch."""

import errno
import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from pipeline import backends
from pipeline.config import reader
from pipeline.plan.keys import program_key
from pipeline.plan.models import Models
from pipeline.plan.plan import Plan
from pipeline.plan.status import Status, export_status, link_status, unit_status, validate_status
from pipeline.store.digest import hash_json
from pipeline.store.errors import ConfigErrors
from pipeline.store.store import Store
from pipeline.store.workspace import Workspace, open_workspace
from tests.support.bench import bench_of


def make_plan(bench):
    listed = open_workspace(bench.root).environment
    return Plan(Workspace(bench.root, Store(bench.store), 1, environment=listed))


def statuses(bench):
    """Return the state and the reason of every action of the package `pair`."""
    plan = make_plan(bench)
    found = {"export": export_status(plan, "pair")}
    compiles = plan.compiles("pair")
    for action in compiles or ():
        found[action.method] = unit_status(plan, "pair", action)
    found["link"] = link_status(plan, "pair")
    found["validate"] = validate_status(plan, "pair")
    return {name: (status.state, status.reason) for name, status in found.items()}


def test_fresh_workspace_waits_for_the_export(tmp_path):
    bench = bench_of("pair", tmp_path)
    found = statuses(bench)
    assert found["export"][0] == "stale"
    assert found["link"] == (
        "waiting",
        "model pair must be exported first: not exported yet",
    )
    assert found["validate"][0] == "waiting"


def test_built_workspace_is_current(built):
    assert {state for state, _ in statuses(built).values()} == {"up-to-date"}


@pytest.mark.parametrize(("name", "kind"), [("pair.pte", "link"), ("report.json", "validate")])
def test_an_edited_file_of_a_build_is_put_back(built, name, kind):
    path = built.root / "build" / "pair" / name
    path.write_bytes(path.read_bytes() + b" ")
    state, reason = statuses(built)[kind]
    assert (state, name in reason) == ("hit", True), reason


def test_planning_changes_nothing(built):
    built.edit("partition_configs/pair.yaml", "[xnnpack]", "[]")
    before = built.snapshot()
    statuses(built)
    assert built.snapshot() == before


def test_plan_is_the_same_every_time(built):
    built.edit("partition_configs/pair.yaml", "[xnnpack]", "[]")
    assert statuses(built) == statuses(built)
    one, two = make_plan(built), make_plan(built)
    assert [a.digest for a in one.compiles("pair")] == [a.digest for a in two.compiles("pair")]
    assert one.link("pair").digest == two.link("pair").digest


def test_reasons_lead_to_the_method_and_the_key(built):
    built.edit("partition_configs/pair.yaml", "[xnnpack]", "[xnnpack, xnnpack]")
    found = statuses(built)
    assert found["encode"][0] == "up-to-date"
    assert found["decode"][0] == "stale"
    assert found["decode"][1].startswith("config methods.decode.partitioners: ")
    assert found["link"] == ("stale", f"decode: {found['decode'][1]}")


def test_another_toolchain_is_a_reason(built, monkeypatch):
    from pipeline.store import toolchain

    original = toolchain.version_of
    monkeypatch.setattr(
        toolchain, "version_of", lambda name: "1.0" if name == "torchao" else original(name)
    )
    state, reason = statuses(built)["link"]
    # Exports from another toolchain run again before anything else.
    assert state == "waiting" and "library torchao" in reason


def test_what_changed_meanwhile_is_seen_again(tmp_path):
    bench = bench_of("archives", tmp_path)
    plan = make_plan(bench)
    before = plan.compile_digests("many"), plan.packages
    shutil.copy(bench.root / "models/many/features.pt2", bench.root / "models/many/classify.pt2")
    (bench.root / "partition_configs" / "one.yaml").unlink()
    assert (plan.compile_digests("many"), plan.packages) == before
    plan.look_again()
    assert plan.compile_digests("many") != before[0] and plan.packages == ("many",)


def test_lost_object_is_stale_when_it_is_needed_only(built):
    """An intact package needs no objects; one that must be linked again does."""
    shutil.rmtree(built.store / "blobs")
    shutil.rmtree(built.root / "build" / "pair")
    found = statuses(built)
    assert found["export"] == ("stale", "its exported program is no longer in the store")


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"link": {}}', '{"link": 5}', "\0", '{"check":"","record":{}}']
)
def test_damaged_state_is_as_good_as_none(built, content):
    (built.root / "build" / ".state" / "pair.json").write_text(content)
    state, _ = statuses(built)["link"]
    assert state == "hit"


def test_mistakes_are_raised_together(built):
    built.edit("partition_configs/pair.yaml", "encode:", "enc:")
    with pytest.raises(ConfigErrors) as errors:
        make_plan(built).check("pair")
    assert [problem.path for problem in errors.value.problems] == ["methods", "methods.enc"]


def test_modules_that_a_method_lacks_are_reported(built):
    built.edit(
        "partition_configs/pair.yaml",
        "[xnnpack]",
        "[{xnnpack: {modules: [shared.weight, shared.wait]}}]\n    modules: [zzz]",
    )
    with pytest.raises(ConfigErrors) as errors:
        make_plan(built).check("pair")
    known = "known: shared, shared.weight"
    assert str(errors.value).splitlines() == [
        "partition_configs/pair.yaml:6: methods.decode.partitioners[0].xnnpack.modules: no module "
        f"'shared.wait' in the program; did you mean 'shared.weight'? {known}",
        "partition_configs/pair.yaml:7: methods.decode.modules: no module 'zzz' in the program; "
        f"{known}",
    ]


@pytest.mark.parametrize("lost", ["", "what programs have", "that and all stamps"])
def test_what_a_config_may_say_does_not_depend_on_what_was_built(tmp_path, lost):
    bench = bench_of("archives", tmp_path)
    path = bench.root / "partition_configs" / "many.yaml"
    config = path.read_text()
    if lost:
        assert not make_plan(bench).problems("many")
        plan = make_plan(bench)
        methods = plan.methods("many")
        plan.remember()
        for method in methods.values():
            plan.workspace.store.action_path(hash_json(program_key(method.program))).unlink()
    if lost == "that and all stamps":
        shutil.rmtree(bench.root / "build", ignore_errors=True)
    path.write_text(f"{config}emit: {{initialized_buffers: [zzz]}}\n")
    (problem,) = make_plan(bench).problems("many")
    assert "emit.initialized_buffers[0]: 'zzz' is not part of a buffer's name" in str(problem)
    path.write_text(config.replace("  features:\n", "  features:\n    modules: [zzz]\n"))
    (problem,) = make_plan(bench).problems("many")
    assert "methods.features.modules: no module 'zzz' in the program" in str(problem)


def test_planning_imports_no_torch(built):
    code = (
        "import json, sys\nfrom pathlib import Path\n"
        "from pipeline.plan.plan import Plan\nfrom pipeline.plan.status import link_status\n"
        "from pipeline.store.workspace import open_workspace\n"
        "plan = Plan(open_workspace(Path('.')))\n"
        "states = [link_status(plan, p).state for p in plan.packages]\n"
        "print(json.dumps([states, 'torch' in sys.modules]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=built.root,
        env=built.environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout) == [["up-to-date"], False]


def unreadable(monkeypatch, folder):
    """Refuse to read a file as if it had mode 000, which root could still read."""

    def refuse(original, path="."):
        if Path(path) == folder:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return original(path)

    for name in ("listdir", "scandir"):  # `Path.iterdir` calls one or the other
        monkeypatch.setattr(os, name, partial(refuse, getattr(os, name)))


def test_an_unreadable_folder_of_models_is_one_line_for_each_package(built, monkeypatch):
    unreadable(monkeypatch, built.root / "models")
    plan = make_plan(built)
    assert [str(problem) for problem in plan.problems("pair")] == [
        "partition_configs/pair.yaml:1: model: models/: cannot be read (Permission denied)"
    ]
    assert plan.exporters == () and plan.link_digest("pair") is None


def test_an_unreadable_model_takes_nothing_from_the_others(built, monkeypatch):
    unreadable(monkeypatch, built.root / "models" / "locked")
    (built.root / "models" / "locked").mkdir()
    config = (built.root / "partition_configs" / "pair.yaml").read_text()
    (built.root / "partition_configs" / "other.yaml").write_text(
        config.replace("model: pair", "model: locked")
    )
    plan = make_plan(built)
    assert not plan.problems("pair")
    assert [str(problem) for problem in plan.problems("other")] == [
        "partition_configs/other.yaml:1: model: models/locked: cannot be read (Permission denied)"
    ]


def test_a_real_run_tells_an_unreadable_folder_without_a_traceback(built):
    models = built.root / "models"
    models.chmod(0)
    try:
        if os.access(models, os.R_OK):
            pytest.skip("this user reads any folder")
        assert built.doit("lower") == 1
    finally:
        models.chmod(0o755)
    assert "model: models/: cannot be read (Permission denied)" in built.output
    assert "Traceback" not in built.output


def test_a_backend_that_changed_makes_its_summaries_anew(tmp_path, monkeypatch):
    """As with a plugin under development: its distribution keeps its version."""
    bench = bench_of("pair", tmp_path)
    time.sleep(0.2)  # recently changed files aren't cached
    xnnpack = backends.BACKENDS["xnnpack"]

    def needs(code, *distributions):
        host = replace(xnnpack.host, facts=lambda: {"plugin": code}, distributions=distributions)
        entry = {"xnnpack": replace(xnnpack, host=host)} if code else {}
        for module in (backends, reader):
            monkeypatch.setattr(module, "BACKENDS", entry)
        plan = make_plan(bench)
        found = plan.configs.summary("pair")
        plan.remember()
        return found and tuple(found.distributions)

    assert needs("1", "torch") == ("torch",)
    assert needs("1", "numpy") == ("torch",)  # its code is the same
    assert needs("2", "numpy") == ("numpy",)
    assert needs("") is None


def test_what_a_config_may_not_say_any_more_is_told_though_nothing_else_changed(tmp_path):
    """An omitted method that the model now lacks, and a library that the settings dropped."""
    bench = bench_of("archives", tmp_path)
    config = bench.root / "partition_configs" / "many.yaml"
    config.write_text(
        "model: many\nmethods:\n  features: {partitioners: []}\n  classify: omit\n"
        "operators: [team_ops]\n"
    )
    (bench.root / "team_ops.py").write_text("")
    bench.settle()
    workspace = Workspace(bench.root, Store(bench.store), 1)
    listed = replace(workspace, operators=("team_ops",))
    assert Plan(listed).link_digest("many") is not None
    listed.file_digests.save()
    untrusted = replace(workspace, operators_folder=False)
    assert Plan(untrusted).link_digest("many") is None
    (bench.root / "models" / "many" / "classify.pt2").unlink()
    assert Plan(replace(listed)).link_digest("many") is None


def test_the_order_of_an_exporters_constants_counts(tmp_path, monkeypatch):
    """It counts in a link action's key, and so it must where the digest of that key is cached."""
    bench = bench_of("archives", tmp_path)
    bench.settle()
    workspace, found = Workspace(bench.root, Store(bench.store), 1), []
    for constants in ({"a": 1, "b": 2}, {"b": 2, "a": 1}):
        monkeypatch.setattr(Models, "constants", lambda *_, own=constants: own)
        found.append(Plan(workspace).link_digest("many"))
    assert None not in found and len(set(found)) == 2


@pytest.mark.parametrize(("budget", "state"), [(59.0, "up-to-date"), (61.0, "stale")])
def test_a_budget_that_is_spent_is_spent_once(budget, state):
    recorded = {"action": "new", "ok": True, "complete": False, "budget": 60.0, "files": {}}
    recorded["left_out"] = "2 input sets left out"
    plan = SimpleNamespace(
        validate_digest=lambda _: "new",
        workspace=SimpleNamespace(
            state=lambda _: {"validate": recorded}, find_damaged=lambda *_: None
        ),
        configs=SimpleNamespace(summary=lambda _: SimpleNamespace(budget=budget)),
    )
    status = validate_status(plan, "p")
    assert status.state == state
    assert status.current == ("2 input sets left out" in status.reason)


@pytest.mark.parametrize(
    ("recorded", "reason"),
    [
        ({"ok": False}, "the last validation failed"),
        (
            {"ok": True, "complete": False},
            "the last validation ran out of time and left some inputs out",
        ),
        (
            {"ok": True, "complete": False, "budget": 59.0},
            "the last validation ran out of time and left some inputs out",
        ),
    ],
)
def test_a_validation_that_is_not_kept_is_told_as_that(recorded, reason):
    lost = "its inputs are no longer in the store"
    key = {"held_to": {"gates": {"max_size": 200000}}}
    kept = {"key": {"held_to": {"gates": {"max_size": 50000}}}}
    edited = "config validate.gates.max_size: 50000 -> 200000"
    planned = SimpleNamespace(key=key, inputs=None, model="m", kind="validate")
    source = SimpleNamespace(path=Path("/w/models/m.py"))
    for action, more, told in (
        ("old", {}, f"{reason}; {lost}"),  # in the form of earlier versions
        ("old", kept, f"{reason}; {edited}"),
        ("new", kept, reason),
    ):
        state = {"validate": {"action": action, **recorded, **more}}
        store = SimpleNamespace(get=lambda _: None)
        workspace = SimpleNamespace(state=lambda _, own=state: own, store=store, root=Path("/w"))
        plan = SimpleNamespace(
            validate_digest=lambda _: "new",
            validate=lambda _: planned,
            models=SimpleNamespace(source=lambda _: source),
            workspace=workspace,
            configs=SimpleNamespace(summary=lambda _: SimpleNamespace(budget=60.0)),
        )
        assert validate_status(plan, "p") == Status("stale", told)


def test_a_package_that_another_run_links_again_is_waited_for():
    plan = SimpleNamespace(
        validate_digest=lambda _: "new",
        validate=lambda _: None,
        workspace=SimpleNamespace(state=lambda _: {}),
        configs=SimpleNamespace(summary=lambda _: None),
    )
    assert validate_status(plan, "p").state == "waiting"
