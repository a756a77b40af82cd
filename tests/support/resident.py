"""Python run in forks of a resident process that has torch and ExecuTorch loaded already.

Starting `doit` and each of its workers costs 4 CPU seconds of imports. A fork of the resident
process inherits those, and imports the rest afresh: the pipeline, plugins, `sitecustomize` and
whatever that patches. There is one resident process for each combination of the variables that
Python and torch read while loading. Workers of a fork are in turn its forks, through joblib's start
method. Behavior that depends on how processes start (kills, imports, threads) is tested in real
ones.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import runpy
import signal
import site
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

REPOSITORY = Path(__file__).resolve().parents[2]
AT_START = ("PYTHONHASHSEED", "ONEDNN_MAX_CPU_ISA")  # Python and torch read them on loading


def run_python(
    *arguments: str,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float = 300,
    merged: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Run `python ARGUMENTS` (`-c CODE`, `-m MODULE` or `SCRIPT`, then more words) until it ends.

    Args:
        merged: add standard error to `stdout`.

    Raises:
        TimeoutError: it took more than `timeout` seconds and was killed.
    """
    given = dict(os.environ if env is None else env)
    with tempfile.NamedTemporaryFile() as output, tempfile.NamedTemporaryFile() as errors:
        streams = output.name, (output if merged else errors).name
        server = _resident(*(given.get(name) for name in AT_START))
        words = arguments, os.fspath(cwd or Path.cwd()), given, streams, timeout
        server.stdin.write(json.dumps(words) + "\n")
        server.stdin.flush()
        answer = server.stdout.readline()
        assert answer, "the resident process has ended; its standard error says why"
        status = json.loads(answer)
        if status is None:
            raise TimeoutError(f"{arguments} took more than {timeout} s")
        told = (file.read().decode() for file in (output, errors))
        return subprocess.CompletedProcess(arguments, status, *told)


@cache
def _resident(*values: str | None) -> Any:
    """Start a resident process, which ends when this process closes its end of the pipe."""
    left_out = ("PYTHONPATH", *AT_START)
    environment = {name: v for name, v in os.environ.items() if name not in left_out}
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", __name__],
        cwd=REPOSITORY,
        env=environment | {n: v for n, v in zip(AT_START, values, strict=True) if v is not None},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def _serve() -> None:
    import executorch.exir  # noqa: F401
    import joblib.externals.loky.backend.context as workers
    import torch.ao.quantization  # noqa: F401

    from tests.support.quick_torch import make_torch_quick

    workers.set_start_method("fork")
    make_torch_quick()
    gc.collect()
    gc.freeze()
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        arguments, folder, environment, streams, timeout = json.loads(line)
        child = os.fork()
        if child == 0:
            _end(_become, arguments, folder, environment, streams)
        answers.write(json.dumps(_wait(child, timeout)) + "\n")
        answers.flush()


def _end(function: Any, *arguments: Any) -> NoReturn:
    """Call a function and end this fork as Python would, except that no modules are cleared."""
    code = 1
    try:
        function(*arguments)
        code = 0
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _wait(child: int, timeout: float) -> int | None:
    deadline = time.monotonic() + timeout
    while not (ended := os.waitpid(child, os.WNOHANG))[0]:
        if time.monotonic() > deadline:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return None
        time.sleep(0.01)
    return os.waitstatus_to_exitcode(ended[1])


def _become(arguments: Any, folder: str, environment: dict[str, str], streams: Any) -> None:
    """Turn this fork into what a new Python with these arguments would be."""
    os.setpgid(0, 0)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number, path in enumerate(streams, 1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_APPEND), number)
    for name, number, mode in (("stdin", 0, "r"), ("stdout", 1, "w"), ("stderr", 2, "w")):
        setattr(sys, name, open(number, mode, closefd=False, buffering=1))  # noqa: SIM115
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    how, *rest = arguments
    first = {"-c": "", "-m": folder}.get(how, os.path.dirname(how))
    own = [each for each in environment.get("PYTHONPATH", "").split(os.pathsep) if each]
    sys.path[:] = [first, *own, *sys.path[1:]]
    sys.modules.pop("sitecustomize", None)
    site.execsitecustomize()
    patched = environment.get("PATCHED_MODULE")
    assert patched not in sys.modules, f"{patched} is loaded already, and is not patched"
    if how == "-m":
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif how == "-c":
        sys.argv = ["-c", *rest[1:]]
        main = sys.modules["__main__"] = type(sys)("__main__")
        exec(compile(rest[0], "<string>", "exec"), vars(main))
    else:
        sys.argv = [*arguments]
        runpy.run_path(how, run_name="__main__")


if __name__ == "__main__":
    _serve()
