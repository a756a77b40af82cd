"""torch, numpy and joblib's processes are imported without side effects, and faster."""

import inspect
import subprocess
import sys

import pytest
import torch
from torch._library.utils import get_source

from pipeline.run import imports

QUIETLY = """
import os
from pipeline.run.imports import import_numpy

os.environ |= {set!r}
before = dict(os.environ)
import_numpy()
import numpy

assert (numpy.ones((2, 2)) @ numpy.ones((2, 2)) == 2).all()
assert dict(os.environ) == before
print(len(os.listdir("/proc/self/task")))
"""


PROCESSES = """
import os
import sys

before = dict(os.environ)
from pipeline.run.executors.processes import ProcessPoolExecutor
from joblib.externals.loky.backend import resource_tracker

assert dict(os.environ) == before
assert not {"numpy", "asyncio", "joblib.memory"} & sys.modules.keys()


def look():
    import os
    import sys

    return "joblib.memory" in sys.modules, os.environ.get("KMP_INIT_AT_FORK")


with ProcessPoolExecutor(1) as pool:
    assert pool.submit(look).result() == (False, "FALSE")
    tracker = resource_tracker._resource_tracker._pid
    with open(f"/proc/{tracker}/maps") as maps:
        assert "numpy" not in maps.read()
"""
JOBLIB = """
import pipeline.run.executors.processes
import joblib.hashing
{use}
assert joblib.__version__ and "Parallel" in joblib.__all__
assert joblib.Parallel(2)(joblib.delayed(abs)(number) for number in (-1, -2)) == [1, 2]
"""


def run(text):
    return subprocess.check_output([sys.executable, "-c", text], text=True)


@pytest.mark.parametrize("variables", [{}, {"OPENBLAS_NUM_THREADS": "2"}])
def test_numpy_starts_no_threads_and_leaves_the_environment_alone(variables):
    assert run(QUIETLY.format(set=variables)) == "1\n"


def test_processes_import_little_of_joblib():
    run(PROCESSES)


@pytest.mark.parametrize("use", ["import joblib", "from joblib import Parallel"])
def test_joblib_works_after_its_processes_were_imported(use):
    run(JOBLIB.format(use=use))


def test_modules_and_places_of_frames_are_those_that_inspect_finds():
    """This includes code that belongs to no module, as in a file run as a script."""
    apart = {"inspect": inspect, "__name__": "collections"}
    exec(compile("frame = inspect.currentframe()", __file__, "exec"), apart)
    frames = [inspect.currentframe(), apart["frame"], sys._getframe(1)]

    def look():
        modules = [inspect.getmodule(each) for each in (*frames, imports, look)]
        return modules, [inspect.getframeinfo(each)[:3:2] for each in frames]

    with imports.keeping_all():
        quick, without = look(), inspect.getframeinfo(frames[0])
        assert without.code_context is None
        assert inspect.getframeinfo(frames[0], 1).code_context
    assert quick == look()
    assert inspect.getframeinfo(frames[0]).code_context


def test_functions_are_those_that_ask_where_an_operator_is_registered():
    """On failure, look at what else they query about a frame."""
    assert "inspect.getframeinfo(sys._getframe(stacklevel))" in inspect.getsource(get_source)
    assert "inspect.getmodule(frame)" in inspect.getsource(torch.library.Library._register_fake)
