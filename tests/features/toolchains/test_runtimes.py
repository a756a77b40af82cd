"""Packages run on the runtimes of all toolchains, and missing features are named."""

import json
import textwrap

import pytest

from pipeline.features.toolchains import runtimes
from pipeline.features.toolchains.runtimes import ask, describe_package, find_refusals, judge
from pipeline.features.toolchains.summary import write_text
from pipeline.store.errors import PipelineError
from pipeline.store.store import Store
from pipeline.store.workspace import Workspace
from tests.support.builds import manifest

PACKAGE = {"package": "demo", "pte": "demo.pte", "ptds": [], "methods": ["encode", "decode"]}
ENCODE, DECODE = ("demo", "encode"), ("demo", "decode")
RAN = {"digest": "a", "values": [1.0, 2.0]}


def make_python(folder, text):
    """Make a stand-in for a Python that reads packages as `run_packages.py` does."""
    python = folder / "python"
    python.write_text("#!/bin/sh\n" + textwrap.dedent(text))
    python.chmod(0o755)
    return python


@pytest.mark.parametrize(
    ("facts", "outcome"),
    [
        (RAN, "yes"),
        ({"digest": "b", "values": [1.0, 2.0 + 1e-6]}, "yes"),
        ({"digest": "b", "values": [1.0, 2.5]}, "yes, decode with other numbers (0.2)"),
        ({"digest": "b", "values": []}, "yes, decode with other numbers (inf)"),
        (
            {
                "error": "Failed to load method, error: 0x14",
                "log": ["[method.cpp:1] Missing operator: [1] aten::foo.out"],
            },
            "no: decode: operator aten::foo.out",
        ),
        (
            {"error": "error: 0x20", "log": ["[x.cpp:1] Backend VgfBackend is not registered."]},
            "no: decode: backend VgfBackend",
        ),
        ({"error": "error: 0x23", "log": []}, "no: decode: error: 0x23"),
    ],
)
def test_an_outcome_names_what_is_missing_or_how_far_numbers_are(facts, outcome):
    present = {ENCODE: RAN, DECODE: RAN}
    assert judge(PACKAGE, {ENCODE: RAN, DECODE: facts}, present) == outcome


def test_a_method_that_was_not_run_is_told_of():
    assert judge(PACKAGE, {}, {}) == "no: encode: was not run"


def test_a_process_that_ends_costs_its_package_alone(tmp_path):
    """The packages after it run in a new process."""
    lines = [
        {"package": "bad", "method": None},
        {"package": "bad", "method": "encode"},
    ]
    good = {"package": "demo", "method": "encode", **RAN}
    python = make_python(
        tmp_path,
        f"""
        if grep -q '"bad"'; then
            echo '{json.dumps(lines[0])}'
            echo '{json.dumps(lines[1])}'
            kill -SEGV $$
        fi
        echo 'a library prints'
        echo '{json.dumps(good)}'
        """,
    )
    bad = {**PACKAGE, "package": "bad"}
    answers = ask(python, [bad, {**PACKAGE, "methods": ["encode"]}])
    assert answers[ENCODE] == RAN
    assert answers["bad", "encode"]["error"] == "its process ended, exit status -11"


def test_a_package_that_never_ends_costs_itself_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(runtimes, "_SECONDS", 1)
    begun = json.dumps({"package": "demo", "method": "encode"})
    python = make_python(tmp_path, f"echo '{begun}'\nexec sleep 60")
    answers = ask(python, [PACKAGE])
    assert {facts["error"] for facts in answers.values()} == {"it did not end within 1 s"}
    assert [*answers] == [ENCODE, DECODE]


NUMPY_RUNTIME = """
import numpy as np

class Runtime:
    @classmethod
    def get(cls):
        return cls()

    def load_program(self, path):
        assert path == "demo.pte"
        return self

    def load_method(self, name):
        self.metadata = {"inputs": [{"scalar_type": 6, "shape": [2, 3]}]}
        return self

    def __call__(self, inputs):
        (values,) = inputs
        assert values.dtype == np.float32
        return [values[0] * 17, 5]
"""


REFUSING_RUNTIME = (
    NUMPY_RUNTIME.replace('assert path == "demo.pte"', "")
    .replace(
        "        (values,) = inputs\n",
        """        (values,) = inputs
        if self.name == "decode":
            import os
            os.write(2, b"Missing operator: [1] aten::foo.out")
            raise RuntimeError("0x14")
""",
    )
    .replace("        self.metadata", "        self.name = name\n        self.metadata")
)


def test_the_runtime_without_torch_runs_packages_and_says_what_it_can_not_read(make_environment):
    environment = make_environment("numpy", executorch_numpy_runtime=NUMPY_RUNTIME)
    others = {**PACKAGE, "package": "others", "ptds": ["demo.ptd"]}
    answers = ask(environment / "bin" / "python", [PACKAGE, others])
    assert answers[ENCODE]["values"] == [0.0, 1.0, 2.0]
    assert judge(PACKAGE, answers, answers) == "yes"
    assert "reads no .ptd file" in judge(others, answers, answers)


def make_workspace(tmp_path, environment):
    """Make a workspace with a toolchain, and a package whose file is empty."""
    settings = f'[tool.pte-pipeline.toolchains]\net13 = "{environment}"\n'
    (tmp_path / "pyproject.toml").write_text(settings)
    folder = tmp_path / "build" / "asr"
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text(json.dumps(manifest()))
    (folder / "asr.pte").write_bytes(b"one")
    return Workspace(tmp_path, Store(tmp_path / "store"), 1)


def test_what_a_runtime_said_is_kept_by_files_and_environment(make_environment, tmp_path):
    """A runtime that ended is asked again, and so is one with another distribution."""
    environment = make_environment("numpy", executorch_numpy_runtime=REFUSING_RUNTIME)
    workspace = make_workspace(tmp_path, environment)
    refused = {"decode": "operator aten::foo.out"}
    assert find_refusals(workspace, "et13", "asr") == refused
    [packages] = environment.glob("lib/python*/site-packages")
    (packages / "executorch_numpy_runtime.py").write_text("import os\nos.abort()\n")
    assert find_refusals(workspace, "et13", "asr") == refused
    (workspace.build / "asr" / "asr.pte").write_bytes(b"other")
    crashed = find_refusals(workspace, "et13", "asr")
    assert crashed["encode"].startswith("exit status -6")
    (packages / "executorch_numpy_runtime.py").write_text(REFUSING_RUNTIME)
    assert find_refusals(workspace, "et13", "asr") == refused
    (packages / "other-2.dist-info").mkdir()
    (packages / "other-2.dist-info" / "METADATA").write_text("Name: other\nVersion: 2\n")
    (packages / "executorch_numpy_runtime.py").write_text(NUMPY_RUNTIME)
    assert find_refusals(workspace, "et13", "asr") != refused


def test_the_runtime_of_a_target_says_what_it_refuses(make_environment, tmp_path):
    environment = make_environment("numpy", executorch_numpy_runtime=REFUSING_RUNTIME)
    workspace = make_workspace(tmp_path, environment)
    assert find_refusals(workspace, "et13", "asr") == {"decode": "operator aten::foo.out"}
    unknown = {"": "no toolchain 'et12' in the settings"}
    assert find_refusals(workspace, "et12", "asr") == unknown


def test_a_runtime_that_can_not_be_imported_is_told_of(tmp_path):
    python = make_python(tmp_path, "echo 'ImportError: no bindings' >&2; exit 1")
    answers = ask(python, [PACKAGE])
    assert judge(PACKAGE, answers, answers) == "no: encode: ImportError: no bindings"


def test_a_package_that_is_not_built_is_refused(tmp_path):
    with pytest.raises(PipelineError, match="demo: is not built; run `doit lower:demo`"):
        describe_package(tmp_path, "demo")


def test_what_runs_everywhere_is_one_line():
    runtimes = ("1.4.1 (default)", "1.5.1 (et15)")
    runs = {
        "a": dict.fromkeys(runtimes, "yes"),
        "b": dict.fromkeys(runtimes, "yes"),
        "c": {runtimes[0]: "yes", runtimes[1]: "no: encode: operator aten::foo.out"},
    }
    assert list(write_text("et15", {}, [], runs))[2:] == [
        "c runs in: 1.4.1 (default) yes, 1.5.1 (et15) no: encode: operator aten::foo.out",
        "run in 1.4.1 (default), 1.5.1 (et15): 2 packages",
    ]


def test_a_manifest_without_a_package_is_one_line(tmp_path):
    folder = tmp_path / "demo"
    folder.mkdir()
    (folder / "manifest.json").write_text(json.dumps({**manifest(), "files": {}}))
    with pytest.raises(PipelineError, match=r"^demo: its manifest\.json names no \.pte file$"):
        describe_package(tmp_path, "demo")
