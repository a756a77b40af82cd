"""pte_pipeline and a team's own `pipeline`, in processes that find the team's first."""

import os
import subprocess
import sys

import pytest

from tests.support.bench import REPOSITORY

TOLD = "`import pipeline` means the package of pte-pipeline, not this; rename it\n"
# A worker process inherits the module search path, and first unpickles something of ours.
CALL_WORKER = """
from pte_pipeline.name_conflict import claim_pipeline
claim_pipeline()
from pathlib import Path
from pipeline.run.executors.processes import WorkerProcesses
from pipeline.store.digest import hash_bytes
processes = WorkerProcesses()
try:
    print(processes.submit(Path("none"), hash_bytes, b"a").result() == hash_bytes(b"a"))
finally:
    processes.close()
"""


@pytest.fixture(params=["pipeline/__init__.py", "pipeline.py", "pipeline/steps.py"])
def team(request, tmp_path):
    """A folder with another module `pipeline`: a package, a file, or a folder of modules."""
    path = tmp_path / request.param
    path.parent.mkdir(exist_ok=True)
    path.write_text("VERSION = 3\n")
    return tmp_path


def run(folder, code):
    """Run a program in a folder, which comes first on its module search path."""
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    return subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=environment, capture_output=True, text=True
    )


def own_module(team):
    return next(place for place in (team / "pipeline.py", team / "pipeline") if place.exists())


def test_names_come_from_the_package_and_what_they_hide_is_named_once(team):
    code = "from pte_pipeline import PipelineError, Store, backends\n"
    code += "import pipeline, pipeline.store.errors as errors; print(pipeline.__file__)\n"
    code += "assert PipelineError is errors.PipelineError"
    done = run(team, code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(REPOSITORY / "pipeline" / "__init__.py")
    # A folder without an `__init__.py` doesn't hide a package that comes after it.
    hides = not (team / "pipeline" / "steps.py").exists()
    assert done.stderr == (f"{own_module(team)}: {TOLD}" if hides else "")


def test_a_module_that_was_imported_before_is_an_error_that_names_it(team):
    if (team / "pipeline" / "steps.py").exists():
        (team / "pipeline" / "__init__.py").touch()
    code = "import pipeline\nbefore = vars(pipeline).copy()\n"
    code += "try:\n    import pte_pipeline.backends\n"
    code += "except ImportError as error:\n    print(error)\n"
    code += "assert vars(pipeline) == before"
    done = run(team, code)
    assert done.returncode == 0, done.stderr
    assert done.stdout == (
        f"{own_module(team)} hides the package `pipeline` of pte-pipeline in this process: rename "
        "it\n"
    )


def test_a_module_without_a_file_is_an_error_too(tmp_path):
    code = "import sys, types; sys.modules['pipeline'] = types.ModuleType('pipeline')\n"
    code += "from pte_pipeline import load_package"
    done = run(tmp_path, code)
    assert "ImportError: a module `pipeline` without a file hides the package" in done.stderr


def test_importing_it_alone_leaves_the_name_to_the_team(team):
    done = run(team, "import pte_pipeline, sys; print('pipeline' in sys.modules)")
    assert (done.stdout, done.stderr) == ("False\n", "")


def test_a_worker_process_finds_the_package(tmp_path):
    (tmp_path / "pipeline.py").write_text("VERSION = 3\n")
    done = run(tmp_path, CALL_WORKER)
    assert done.stdout == "True\n", done.stderr
