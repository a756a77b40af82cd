"""A user's tasks before, between and after ours: no package is made from outdated inputs."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

from pipeline.features.other_tasks.phases import has_code_for_workers
from pipeline.plan.plan import Plan
from pipeline.store.workspace import open_workspace
from tests.features.backend_plugins.test_plugins import install
from tests.support.bench import Bench, bench_of
from tests.support.patches import python_path
from tests.support.team import Added

CONFIG = "model: m\nmethods:\n  forward:\n    partitioners: []\n"
IMPORT = "from pte_pipeline.tasks import *\n"
COPY = "cp versions/$(cat version).pt2 models/m.pt2"
TRAIN = f"""
def task_train():
    return {{"actions": ["{COPY}"], "file_dep": ["version"], "targets": ["models/m.pt2"]}}
"""
RELEASE = """
def task_release():
    return {"actions": ["cp build/m/m.pte released.pte"], "file_dep": ["build/m/m.pte"],
            "targets": ["released.pte"]}
"""
# Other ways to make the model, or to request it.
SUBTASKS = f"""
def task_train():
    yield {{"name": "m", "actions": ["{COPY}", "touch log"], "file_dep": ["version", "dodo.py"],
           "targets": ["log", "models/m.pt2"]}}
    yield {{"name": "other", "actions": ["false"], "targets": ["models/other.pt2"]}}
"""
FOLDER = """
def task_train():
    return {"actions": ["mkdir -p models/m; cp versions/$(cat version).pt2 models/m/forward.pt2"],
            "file_dep": ["version"], "targets": ["models/m"]}
"""
UNDECLARED = f"""
def task_train():
    return {{"actions": ["{COPY}"]}}
"""
CALCULATED = """
def task_find():
    return {"actions": [lambda: {"file_dep": ["build/m/m.pte"]}]}
def task_release():
    return {"actions": ["cp build/m/m.pte released.pte"], "calc_dep": ["find"]}
"""
SET_UP = """
def task_release():
    return {"actions": ["cp build/m/m.pte released.pte"], "setup": ["train", "lower"]}
"""
DEFAULTS = """
DOIT_CONFIG = {"default_tasks": ["train", "lower", "validate", "release"]}
"""


def make_workspace(root: Path, dodo: str, packages: str = "m") -> Bench:
    for folder in ("models", "partition_configs"):
        (root / folder).mkdir(parents=True)
    (root / "dodo.py").write_text(dodo)
    for package in packages:
        (root / "partition_configs" / f"{package}.yaml").write_text(CONFIG)
    return Bench(root)


@pytest.fixture(scope="module")
def versions(tmp_path_factory):
    """A folder with two versions of a model, and the package built from each version."""
    folder = tmp_path_factory.mktemp("versions")
    packages = {}
    bench = make_workspace(folder / "workspace", IMPORT)
    for version in ("1", "2"):
        program = torch.export.export(Added(float(version)), (torch.ones(2),))
        torch.export.save(program, folder / f"{version}.pt2")
        shutil.copy(folder / f"{version}.pt2", bench.root / "models" / "m.pt2")
        assert bench.doit("lower") == 0, bench.output
        packages[version] = bench.bytes_of("m", "m.pte")
    return folder, packages


@pytest.fixture
def workspace(versions, tmp_path):
    """Return a function that makes a workspace from a dodo file, with both model versions."""

    def make(dodo: str, packages: str = "m") -> Bench:
        bench = make_workspace(tmp_path / "trained", IMPORT + dodo, packages)
        (bench.root / "versions").symlink_to(versions[0])
        (bench.root / "version").write_text("1")
        return bench

    return make


@pytest.fixture
def version_of(versions):
    """Return a function that returns the version of the model in a package."""

    def find(bench: Bench, package: str = "m", file: str = "") -> str:
        path = bench.root / (file or f"build/{package}/{package}.pte")
        content = path.read_bytes()
        return next(version for version, built in versions[1].items() if built == content)

    return find


@pytest.mark.parametrize(
    ("dodo", "words"),
    [
        (TRAIN + RELEASE, "lower"),
        (TRAIN + RELEASE, "-n 2 train lower validate release"),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in [
                (TRAIN, "train lower:m"),
                (TRAIN, "m"),
                (TRAIN + RELEASE, "release"),
                (TRAIN + RELEASE + DEFAULTS, ""),
                (SUBTASKS + RELEASE, "lower release"),
            ]
        ),
        *(
            pytest.param(*case, marks=[pytest.mark.slow, pytest.mark.release])
            for case in [
                (SUBTASKS, "train:m lower"),
                (FOLDER, "lower"),
                (UNDECLARED + RELEASE, "train lower validate release"),
                (TRAIN + CALCULATED, "lower release"),
                (UNDECLARED + SET_UP, "release"),
            ]
        ),
    ],
)
def test_a_model_that_a_task_makes_is_built_as_it_is(workspace, version_of, dodo, words):
    """For a first build, and after a change."""
    bench = workspace(dodo)
    for version in ("1", "2"):
        (bench.root / "version").write_text(version)
        assert bench.doit(*words.split()) == 0, bench.output
        assert version_of(bench) == version
        if "release" in words + dodo:
            released = bench.root / "released.pte"
            assert not released.exists() or version_of(bench, file="released.pte") == version
            assert released.exists() or "release" not in (words or DEFAULTS)
    assert bench.doit(*words.split()) == 0
    assert "up to date: 1 package" in bench.output
    if dodo.startswith(TRAIN):
        assert "-- train" in bench.output


def test_a_plan_names_the_tasks_that_a_run_does_first(workspace):
    """Before anything is built, before doit has a state file, and after a change."""
    bench = workspace(TRAIN + RELEASE)
    assert bench.doit("check") == 0 and "no mistakes" in bench.output
    for version in ("1", "2"):
        (bench.root / "version").write_text(version)
        assert bench.doit("plan") == 0, bench.output
        assert "link      m          waits  train runs first" in bench.output
        assert bench.output.endswith("3 wait\n")
        assert bench.doit("lower") == 0, bench.output
    assert bench.doit("plan") == 0
    assert "2 current" in bench.output and "train" not in bench.output
    states = bench.root / ".doit.sqlite3"
    states.write_bytes(b"damaged")  # left for the next run to repair
    assert bench.doit("plan") == 0 and "train runs first" in bench.output
    assert states.read_bytes() == b"damaged"


def test_tasks_run_in_the_order_of_the_command_line(workspace, version_of):
    bench = workspace(UNDECLARED, "abm")
    assert bench.doit("train", "lower") == 0, bench.output
    (bench.root / "version").write_text("2")
    assert bench.doit("lower:a", "train", "lower:b") == 0, bench.output
    assert [version_of(bench, package) for package in "abm"] == ["1", "2", "1"]
    (bench.root / "version").write_text("1")
    assert bench.doit("lower", "train", "validate:a") == 0, bench.output
    assert [version_of(bench, package) for package in "abm"] == ["1", "2", "2"]


def test_a_task_that_makes_a_config_comes_first(workspace, version_of):
    """Here the task adds a package, and later other methods to it."""
    bench = workspace(
        """
def task_configs():
    return {"actions": ["cp config partition_configs/new.yaml; rm -f partition_configs/b.yaml"],
            "file_dep": ["config"], "targets": ["partition_configs/new.yaml"]}
""",
        "b",
    )
    shutil.copy(bench.root / "versions" / "1.pt2", bench.root / "models" / "m.pt2")
    (bench.root / "config").write_text(CONFIG)
    assert bench.doit("lower") == 0, bench.output
    assert version_of(bench, "new") == "1" and not (bench.root / "build" / "b").exists()
    (bench.root / "config").write_text(CONFIG.replace("forward", "backward"))
    assert bench.doit("lower") == 1
    assert "new.yaml:3: methods.backward" in bench.output


@pytest.mark.slow
def test_what_only_a_validation_reads_comes_before_it(workspace):
    """Recorded outputs: right ones first, then wrong ones."""
    bench = workspace(
        """
def task_record():
    return {"actions": ["mkdir -p golden/m; cp outputs.npz golden/m/forward.npz"],
            "file_dep": ["outputs.npz"], "targets": ["golden/m/forward.npz"]}
"""
    )
    shutil.copy(bench.root / "versions" / "1.pt2", bench.root / "models" / "m.pt2")
    for number, status in ((2.0, 0), (3.0, 1)):
        recorded = np.ones((1, 2), np.float32)
        np.savez(bench.root / "outputs.npz", x=recorded, output=number * recorded)
        assert bench.doit("lower") == 0 and "record" not in bench.output, bench.output
        assert bench.doit("validate") == status, bench.output
        assert ".  record" in bench.output


def test_a_task_that_fails_leaves_what_needs_it_undone(workspace, version_of):
    bench = workspace(TRAIN.replace("cp ", "test $(cat version) = 1 && cp "))
    assert bench.doit("lower") == 0, bench.output
    (bench.root / "version").write_text("2")
    assert bench.doit("lower") != 0
    assert bench.outcomes()["link m"] == "not-run" and version_of(bench) == "1"


@pytest.mark.parametrize(("sample", "expected"), [("operators", True), ("archives", False)])
def test_workers_begin_anew_where_they_import_code_of_the_workspace(tmp_path, sample, expected):
    root = bench_of(sample, tmp_path).root
    assert has_code_for_workers(Plan(open_workspace(root))) is expected


def test_another_dodo_file_has_other_tasks(workspace, version_of):
    bench = workspace("")
    (bench.root / "other.py").write_text(IMPORT + TRAIN)
    assert bench.doit("-f", "other.py", "lower") == 0, bench.output
    assert version_of(bench) == "1"
    assert bench.doit("lower") == 0 and "train" not in bench.output


EXPORTER = """
from pathlib import Path
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return x + self.number

def export_methods():
    model = Model()
    model.number = float(Path("data/seeds/seed.txt").read_text())
    return {"forward": torch.export.export(model, (torch.ones(2),))}
"""
FETCH = """
def task_fetch():
    return {"actions": ["mkdir -p data/seeds; cp version data/seeds/seed.txt"],
            "file_dep": ["version"], "targets": ["data/seeds"]}
"""


def test_what_an_exporter_turns_out_to_read_is_made_first(workspace, version_of):
    """It is unknown before the exporter runs: at first, after a failure, with other lines."""
    bench = workspace(FETCH)
    exporter = bench.root / "models" / "m.py"
    exporter.write_text(EXPORTER)
    assert bench.doit("lower") == 0, bench.output
    assert version_of(bench) == "1"
    assert "warning: m: reads files that fetch makes; exported again" in bench.output
    (bench.root / "version").write_text("2")
    exporter.write_text(EXPORTER + "\n# another text\n")
    assert bench.doit("lower") == 0, bench.output
    assert version_of(bench) == "2" and bench.outcomes()["export m"] == "built"
    assert bench.doit("lower") == 0 and "-- fetch" in bench.output
    assert "up to date: 1 package" in bench.output


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        'INPUTS = ["data/**"]\n' + EXPORTER,
        'INPUTS = ["data/seeds"]\n' + EXPORTER,
        EXPORTER.replace('float(Path("data/seeds/seed.txt").read_text())', "made.NUMBER").replace(
            "import torch", "import torch\nimport made", 1
        ),
    ],
)
def test_inputs_that_an_exporter_names_or_imports_are_made_first(workspace, version_of, text):
    bench = workspace(
        FETCH
        + """
def task_module():
    return {"actions": ["echo NUMBER = float\\\\($(cat version)\\\\) > models/made.py"],
            "file_dep": ["version"], "targets": ["models/made.py"]}
"""
    )
    (bench.root / "models" / "m.py").write_text(text)
    for version in ("1", "2"):
        (bench.root / "version").write_text(version)
        assert bench.doit("lower") == 0, bench.output
        assert version_of(bench) == version


@pytest.mark.slow
def test_a_plugin_that_a_task_changes_lowers_again(workspace, tmp_path):
    """Here the task runs between two of ours, after workers have imported the plugin."""
    patch = """
def task_patch():
    return {"actions": ["sed -i 's/at level/at this level/' ../site/acme_backend.py"]}
"""
    bench = workspace(patch)
    (tmp_path / "site").mkdir()
    install(tmp_path / "site")
    shutil.copy(bench.root / "versions" / "1.pt2", bench.root / "models" / "m.pt2")
    config = bench.root / "partition_configs" / "m.yaml"
    config.write_text(CONFIG.replace("[]", "[acme]"))
    config.with_name("n.yaml").write_text(CONFIG.replace("[]", "[acme: {level: 2}]"))
    path = {"PYTHONPATH": python_path(tmp_path / "site")}
    environment = {**bench.environment, **path}
    words = bench.command("lower:m", "patch", "lower")  # forks would inherit it
    subprocess.run(words, cwd=bench.root, env=environment, check=True, timeout=300)
    assert [a["outcome"] for a in bench.actions() if a["kind"] == "compile"] == ["built"] * 3
    for package, line in (("m", "acme at this level 1"), ("n", "acme at this level 2")):
        log = bench.root / "build" / ".logs" / package / "compile-forward.log"
        assert line in log.read_text()
