"""A command line runs in the Python of another toolchain, and shares results if possible."""

import json
import subprocess

import pytest

from pipeline.features.toolchains.driver import VARIABLE, link_code, make_environment
from pipeline.store.toolchain import toolchain
from tests.support.bench import bench_of

PRINT_KEY = """
import json, os, sys
from pipeline.store.toolchain import code, toolchain
print(json.dumps([toolchain(), code(), sys.prefix, os.environ["PTE_PIPELINE_TOOLCHAIN"]]))
"""


def ask_key(environment, name):
    """Return what an environment's Python puts into keys, and where it runs."""
    python = environment / "bin" / "python"
    answer = subprocess.run(
        [python, "-P", "-c", PRINT_KEY],
        env=make_environment(name, python),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return json.loads(answer.stdout)


def settle(bench, **toolchains):
    lines = [f'{name} = "{folder}"' for name, folder in toolchains.items()]
    text = "\n".join(["[tool.pte-pipeline.toolchains]", *lines])
    (bench.root / "pyproject.toml").write_text(f"{text}\n")


def test_keys_hold_what_the_other_environment_has(twin, started_twin):
    """Equal distributions give the same key, wherever they are; a module that Python runs at
    startup changes it."""
    versions, digest, prefix, name = ask_key(twin, "twin")
    assert (prefix, name) == (str(twin), "twin")
    assert versions == toolchain()
    other_versions, other_digest, *_ = ask_key(started_twin, "other")
    assert other_digest == digest
    assert {*other_versions} - {*versions} == {"import sitecustomize"}


@pytest.mark.slow
def test_a_command_line_runs_in_another_toolchain(tmp_path, twin):
    """The option may be anywhere, and an unknown name gives a one-line error."""
    bench = bench_of("pair", tmp_path)
    (bench.root / "dodo.py").write_text(
        f"from pte_pipeline.tasks import *\nimport os, sys\nprint(sys.prefix, "
        f"os.environ.get('{VARIABLE}'))\n"
    )
    settle(bench, twin=twin)
    assert bench.process("list", "--toolchain", "twin") == 0, bench.output
    assert f"{twin} twin" in bench.output
    assert bench.doit("--toolchain=twim", "list") == 3
    assert bench.output == (
        "ERROR: no toolchain 'twim' in `toolchains` of [tool.pte-pipeline] in pyproject.toml; "
        "did you mean 'twin'? known: twin [PTE914]\n"
    )


def read_toolchain(bench, package):
    manifest = json.loads((bench.root / "build" / package / "manifest.json").read_text())
    return manifest["toolchain"]


@pytest.mark.slow
def test_another_toolchain_builds_with_its_own_distributions(tmp_path, twin, started_twin):
    """With equal distributions, keys are equal and nothing is built again. If they differ, here in
    a module that Python runs at startup, everything is."""
    bench = bench_of("pair", tmp_path)
    settle(bench, twin=twin, other=started_twin)
    package = "pair"
    assert bench.process("lower", package) == 0, bench.output
    versions = read_toolchain(bench, package)
    assert bench.process("lower", package, "--toolchain", "twin") == 0, bench.output
    assert "up to date: 1 package" in bench.output
    assert bench.process("--toolchain=other", "lower", package) == 0, bench.output
    assert "built    compile" in bench.output
    assert read_toolchain(bench, package).items() > versions.items()
    assert "import sitecustomize" in read_toolchain(bench, package)
    assert bench.process("lower", package) == 0, bench.output
    assert read_toolchain(bench, package) == versions
    assert "built" not in {*bench.outcomes().values()}


def test_the_folder_of_our_code_holds_nothing_else(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = link_code()
    names = sorted(path.name for path in folder.iterdir())
    assert names[0] == "pipeline"
    assert names[1] == "pte_pipeline"
    assert len(names) == 2 or names[2].endswith("-info")
    assert link_code() == folder
