"""torch, numpy and joblib are imported without side effects, and faster."""

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
{imports}
import numpy

assert (numpy.ones((2, 2)) @ numpy.ones((2, 2)) == 2).all()
assert dict(os.environ) == before
print(len(os.listdir("/proc/self/task")))
"""


@pytest.mark.parametrize(
    ("imports", "variables"),
    [
        ("import_numpy()", {}),
        ("import_numpy()", {"OPENBLAS_NUM_THREADS": "2"}),
        ("import pipeline.run.executors.processes", {}),
        ("import pipeline.run.executors.processes", {"KMP_INIT_AT_FORK": "TRUE"}),
    ],
)
def test_numpy_and_joblib_start_no_threads_and_leave_the_environment_alone(imports, variables):
    command = [sys.executable, "-c", QUIETLY.format(imports=imports, set=variables)]
    assert subprocess.check_output(command, text=True) == "1\n"


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
