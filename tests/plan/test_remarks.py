"""Files and settings of a workspace that are ignored, or probably unintended, are reported."""

import shutil

import pytest

from pipeline.cli import console
from pipeline.features.check import verb as check
from pipeline.features.contracts.labels import KNOWN_LABELS, near_labels
from pipeline.features.explain import plan
from pipeline.features.unused.code_files import _find_hidden_modules, find_broken_files
from pipeline.plan.plan import Plan
from pipeline.plan.remarks import find_remarks
from pipeline.store.errors import PipelineError
from pipeline.store.workspace import open_workspace
from tests.support.bench import REPOSITORY, SAMPLES

CONFIG = "model: m\ntarget: {target}\nmethods:\n  forward: {{partitioners: []{more}}}\n"
PORTABLE = "kernels: [portable]\n"


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("PTE_PIPELINE_STORE", str(tmp_path / "store"))
    root = tmp_path / "workspace"
    for folder in ("models", "partition_configs", "passes", "operators", "targets"):
        (root / folder).mkdir(parents=True)
    (root / "models" / "m.py").write_text("def export_methods(): pass\n")
    return root


def configure(root, name="p", target="here", more="", end=""):
    text = CONFIG.format(target=target, more=more) + end
    (root / "partition_configs" / f"{name}.yaml").write_text(text)


def remarks(root):
    return [str(each) for each in find_remarks(Plan(open_workspace(root)))]


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("pipeline/__init__.py", "pipeline/"),
        ("pipeline/steps.py", "pipeline/"),
        ("pipeline.py", "pipeline.py"),
        ("pipeline/ci.yaml", ""),
        ("models/pipeline.py", ""),  # it has another name as well
    ],
)
def test_a_module_that_this_package_hides_is_told(root, path, name):
    configure(root)
    (root / path).parent.mkdir(exist_ok=True)
    (root / path).touch()
    what = "is hidden here: `import pipeline` means the package of pte-pipeline"
    line = f"{name}: {what}; rename it if models or passes import it"
    assert remarks(root) == ([line] if name else [])


def test_this_package_itself_is_not_told():
    assert not list(_find_hidden_modules(REPOSITORY))


def test_configs_in_subfolders_are_told(root):
    configure(root)
    folder = root / "partition_configs"
    for name in ("phones/a.yaml", "phones/old/b.yml", "notes/readme.txt", ".git/c.yaml"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    assert remarks(root) == [
        "partition_configs/phones/: is a subfolder, so its configs (a.yaml, old/b.yml) are "
        "ignored; move them to partition_configs/"
    ]


# Targets


@pytest.mark.parametrize(
    ("label", "meant"),
    [
        ("andriod-arm64", "android-arm64"),
        ("android_arm64", "android-arm64"),
        ("Android-ARM64", "android-arm64"),
        ("android-amr64", "android-arm64"),
        ("android-arm46", "android-arm64"),
        ("anroid-arm64", "android-arm64"),
        ("widnows-x64", "windows-x64"),
    ],
)
def test_a_misspelled_label_is_told(root, label, meant):
    configure(root, target=label)
    (line,) = remarks(root)
    assert line.startswith(f"partition_configs/p.yaml:2: target: '{label}' looks misspelled; did ")
    assert f"did you mean '{meant}'?" in line


@pytest.mark.parametrize(
    "label",
    [*KNOWN_LABELS, "here", "board-a", "cortex-m4", "pixel-9", "pixel-10", "watch2", "phone"],
)
def test_other_labels_are_free(label):
    assert not near_labels(label, ["board-b", "pixel-8", "watch1"])
    assert label in KNOWN_LABELS or not near_labels(label, KNOWN_LABELS)


def test_a_label_is_compared_with_those_of_other_configs(root):
    for number in range(2):
        configure(root, f"p{number}", "kitchen-display")
    configure(root, "q", "kitchen-dispaly")
    (line,) = remarks(root)
    assert line.startswith("partition_configs/q.yaml:2: target: 'kitchen-dispaly' looks missp")
    assert "did you mean 'kitchen-display', as 2 of the packages?" in line


@pytest.mark.parametrize(
    ("label", "words"), [("phnoe", "did you mean 'phone'?"), ("router", "known: phone")]
)
def test_where_there_are_targets_a_label_without_a_file_is_told(root, label, words):
    (root / "targets" / "phone.yaml").write_text(PORTABLE)
    configure(root, "held", "phone")
    configure(root, "p", label)
    (line,) = remarks(root)
    assert f"p.yaml:2: target: there is no targets/{label}.yaml, so no runtime is checked" in line
    assert words in line
    configure(root, "p", label, end="validate: {gates: {runs_on: []}}\n")
    assert remarks(root) == []


def test_a_target_that_a_gate_names_must_have_a_file(root):
    configure(root, target="phone", end="validate: {gates: {runs_on: [phnoe]}}\n")
    (root / "targets" / "phone.yaml").write_text(PORTABLE)
    (problem,) = Plan(open_workspace(root)).problems("p")
    assert "no target 'phnoe'" in str(problem) and "did you mean 'phone'" in str(problem)


def test_targets_that_nothing_is_held_to_are_told(root):
    configure(root)
    for name in ("old.yml", "unused.yaml"):
        (root / "targets" / name).write_text(PORTABLE)
    configure(root, target="here", end="validate: {gates: {runs_on: []}}\n")
    assert remarks(root) == [
        "targets/old.yml: is not read; call it old.yaml",
        "targets/unused.yaml: no config names it in `target` or `runs_on`, so it checks no package",
    ]


# Code


USED = {
    "passes/fusions.py": "from . import _parts\nimport quiet, numbers\nfrom deep.inner import x\n",
    "passes/_parts.py": "",
    "passes/quiet.py": "",
    "passes/deep/inner.py": "",
    "passes/test_fusions.py": "",
    "operators/team_ops/__init__.py": "",
    "operators/team_ops/more.py": "",
    "operators/by_exporter.py": "",
    "operators/lib_team.so": "",
    "operators/by_path.py": "LIB = 'operators/lib_team.so'\n",
    "models/_more.py": "def late():\n    from operators import by_exporter\n",
}


def write(root, files):
    for name, text in files.items():
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(text)


@pytest.fixture
def used(root):
    write(root, USED)
    end = "operators: [team_ops, operators/by_path.py]\n"
    configure(root, more=", edge: {passes: ['fusions:Fuse']}", end=end)
    return root


def test_files_that_are_used_are_not_told(used):
    assert remarks(used) == []


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("passes/spare.py", "no config names a pass from it"),
        ("passes/numbers.py", "no config names a pass from it"),  # `import numbers` is Python's
        ("passes/deep/spare.py", "no config names a pass from it"),
        ("operators/torchao.py", "no config or setting names it in `operators`"),
        ("operators/lib_spare.so", "no config or setting names it in `operators`"),
    ],
)
def test_a_file_that_nothing_uses_is_told(used, name, why):
    write(used, {name: "import torchao\nraise RuntimeError\n"})
    assert remarks(used) == [f"{name}: {why}, so nothing loads it"]


def test_a_library_of_the_settings_is_used(used):
    write(used, {"operators/listed.py": ""})
    write(used, {"pyproject.toml": '[tool.pte-pipeline]\noperators = ["listed"]\n'})
    assert remarks(used) == []


def test_what_a_config_with_mistakes_may_use_is_not_told(used):
    write(used, {"passes/spare.py": "", "partition_configs/q.yaml": "model: [\n"})
    assert remarks(used) == []


def test_a_file_that_is_no_python_is_a_mistake(used):
    write(used, {"passes/broken.py": "\ndef f(:\n", "operators/null.py": "x = 1\0"})
    write(used, {"models/broken.py": "def export_methods()\n", "models/sub/none.py": "def\n"})
    first, second, third = map(str, find_broken_files(Plan(open_workspace(used))))
    assert third == "models/broken.py:1: is not valid Python: expected ':'"
    assert first == "passes/broken.py:2: is not valid Python: invalid syntax"
    assert second.startswith("operators/null.py: is not valid Python: ")
    assert remarks(used) == [second, first]  # no remark that nothing loads them


@pytest.mark.parametrize("verb", [check, plan, console])
def test_commands_tell_it(tmp_path, verb):
    shutil.copytree(SAMPLES / "archives", root := tmp_path / "archives")
    workspace = open_workspace(root)

    def lines():
        if verb is console:
            return [*console._remark_lines(Plan(workspace))]
        return [*verb.run(Plan(workspace), [])]

    assert not any("warning" in line for line in lines())
    write(root, {"operators/torchao.py": "raise RuntimeError\n"})
    said = "warning: operators/torchao.py: no config or setting names it in `operators`, so nothing"
    assert any(line.startswith(said) for line in lines())
    write(root, {"operators/torchao.py": "def\n"})
    if verb is check:
        with pytest.raises(PipelineError, match="with mistakes"):
            lines()
    else:
        said = "warning: operators/torchao.py:1: is not valid Python: "
        assert any(line.startswith(said) for line in lines())
