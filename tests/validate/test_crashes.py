"""A package that ends the process running it fails for that reason, and others are validated."""

import json
import signal
import subprocess
import sys

import pytest

from pipeline.validate.crashes import CrashLog
from tests.support.stand_in import run_stand_in

# In every process of the bench: one method of the pair ends any process that calls it in this way.
ENDING = """
import os, signal, time
def end(name, function, method):
    def ends(self, given, *rest):
        if given == method:
            os.kill(os.getpid(), getattr(signal, name))
        return function(self, given, *rest)
    return ends
def hang(function, method):
    def hangs(self, given, *rest):
        if given == method:
            time.sleep(600)
        return function(self, given, *rest)
    return hangs
"""
SEGFAULT = {"run": "ends the process that runs it (SIGSEGV(-11)) while it runs"}


def say(log, method, what):
    with log.guard(method, what):
        pass


def test_a_crash_is_that_of_the_last_step_and_is_recorded_once(tmp_path):
    worker, driver = CrashLog(tmp_path, "p"), CrashLog(tmp_path, "p")
    assert not driver.record_crash("SIGSEGV(-11)")  # it reported nothing
    say(worker, "run", "it is loaded")
    say(worker, "run", "it runs")
    assert driver.record_crash("SIGSEGV(-11)")
    assert driver.crashes() == SEGFAULT
    assert not driver.record_crash("SIGSEGV(-11)")  # the same method as before
    say(worker, "other", "it runs")
    driver.clear(crashes=False)
    assert not driver.record_crash("SIGSEGV(-11)")
    assert driver.crashes() == SEGFAULT
    driver.clear()
    assert driver.crashes() == {}
    assert list((tmp_path / "p").iterdir()) == []


def test_a_package_that_cannot_be_opened_is_a_crash_too(tmp_path):
    log = CrashLog(tmp_path, "p", 600)
    say(log, "", "it is opened")
    assert log.record_crash("SIGKILL(-9)")
    assert log.crashes()[""] == (
        "ends the process that runs it (SIGKILL(-9)) while it is opened; the system may have ended "
        "it for lack of memory"
    )


LATE = """
import sys
from pathlib import Path
from pipeline.validate.crashes import CrashLog
from tests.support.stand_in import run_stand_in

log = CrashLog(Path(sys.argv[1]), "p", 0.2)
with log.guard("run", "it runs"):
    pass
for second in range(3):
    with log.guard("run", "it runs"):
        list(range(1000))
print("in time", flush=True)
with log.guard("other", "it is loaded"):
    sum(range(10**12))
"""


def test_what_takes_too_long_is_ended_in_native_code_too(tmp_path):
    """The sum is computed in C, which lets no Python thread run."""
    done = subprocess.run([sys.executable, "-c", LATE, str(tmp_path)], stdout=subprocess.PIPE)
    assert (done.stdout, done.returncode) == (b"in time\n", -signal.SIGALRM)
    log = CrashLog(tmp_path, "p")
    assert log.record_crash("SIGALRM(-14)")
    late = "was ended after 0.2 s (validate.timeout) while it is loaded"
    assert log.crashes() == {"other": late}


@pytest.mark.parametrize("content", [b"", b"[", b'["a"]', b'{"a": ', b'[{"a": 1}]'])
def test_files_that_were_cut_off_say_nothing(tmp_path, content):
    log = CrashLog(tmp_path, "p")
    say(log, "run", "it runs")
    for path in (tmp_path / "p").iterdir():
        path.write_bytes(content)
    (tmp_path / "p" / "validate.crashes").write_bytes(content)
    assert not log.record_crash("SIGSEGV(-11)")
    assert log.crashes() == {}


def ending(bench, *lines):
    """Return the code that Python runs first in every process of the bench."""
    folder = bench.root / ".ending"
    folder.mkdir()
    hook = "\n".join(
        [
            ENDING,
            "import importlib.abc, importlib.machinery, sys",
            "class Finder(importlib.abc.MetaPathFinder):",
            "    def find_spec(self, name, path, target=None):",
            "        if name != 'pipeline.devices.bindings': return None",
            "        sys.meta_path.remove(self)",
            "        spec = importlib.machinery.PathFinder.find_spec(name, path)",
            "        execute = spec.loader.exec_module",
            "        def exec_module(module):",
            "            execute(module)",
            *(f"            {line}" for line in lines),
            "        spec.loader.exec_module = exec_module",
            "        return spec",
            "sys.meta_path.insert(0, Finder())",
        ]
    )
    (folder / "sitecustomize.py").write_text(hook)
    return {"PYTHONPATH": f"{folder}:{bench.environment.get('PYTHONPATH', '')}"}


PERFORM = """
import os, signal
from pipeline.validate.crashes import CrashLog
from tests.support.stand_in import run_stand_in

def runs_user_code(action):
    return False

def perform(action, workspace, stages, always, *_):
    log = CrashLog(workspace.logs, action.package)
    dead = log.crashes()
    for method in action.inputs["fatal"]:
        if method not in dead or action.inputs["again"]:
            with log.guard(method, "it runs"):
                os.kill(os.getpid(), signal.SIGSEGV)
    stages.current = "; ".join(f"{name} {how}" for name, how in log.crashes().items())
    log.clear()
    return False
"""


def test_a_validation_is_tried_again_without_each_method_that_ended_its_worker(tmp_path):
    """Checks what it says about these methods, and that the others aren't affected. A validation
    whose worker ends even so is given up."""
    packages = {
        "two": {"fatal": ["run", "other"], "again": False},
        "none": {"fatal": [], "again": False},
        "ever": {"fatal": ["run"], "again": True},
    }
    actions = [("validate", package, inputs) for package, inputs in packages.items()]
    told = run_stand_in(tmp_path, PERFORM, actions)
    how = "ends the process that runs it (SIGSEGV(-11)) while it runs"
    assert told["two"][:2] == ["", f"run {how}; other {how}"]
    assert told["none"][:2] == ["", ""]
    assert told["ever"][0].startswith("its worker process died (SIGSEGV(-11)), 3 times")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lines", "dead"),
    [
        (["P = module.Package", "P.run = end('SIGSEGV', P.run, 'decode')"], {"decode"}),
        (
            [
                "P = module.Package",
                "P.load = end('SIGABRT', P.load, 'decode')",
                "P.run = end('SIGSEGV', P.run, 'encode')",
            ],
            {"encode", "decode"},
        ),
    ],
)
def test_doit_tells_which_method_ended_its_worker(built, lines, dead):
    """The others are validated, and an earlier package's report doesn't remain."""
    built.edit("models/pair.py", "- 1.0", "- 2.0")
    environment = ending(built, *lines)
    assert built.doit("validate", **environment) == 1, built.output
    record = json.loads(built.bytes_of("pair", "report.json"))
    failed = {m["method"]: m for m in record["methods"] if not m["ok"]}
    assert set(failed) == dead
    assert not record["ok"]
    for name, method in failed.items():
        how = "SIGABRT" if len(dead) == 2 and name == "decode" else "SIGSEGV"
        assert how in method["failures"][0]["what"], method
    assert all(m["runs"] for m in record["methods"] if m["method"] not in dead)
    assert "ends the process that runs it" in built.output
    assert built.doit("validate") == 0, built.output
    assert json.loads(built.bytes_of("pair", "report.json"))["ok"]


@pytest.mark.slow
def test_doit_tells_which_method_never_ends(built):
    config = built.root / "partition_configs" / "pair.yaml"
    config.write_text(f"{config.read_text()}validate: {{timeout: 3, atol: 1.0e-3}}\n")
    hangs = ["P = module.Package", "P.run = hang(P.run, 'decode')"]
    environment = ending(built, *hangs)
    assert built.doit("validate", **environment) == 1, built.output
    assert "decode: was ended after 3 s (validate.timeout) while it runs" in built.output
    record = json.loads(built.bytes_of("pair", "report.json"))
    assert [m["method"] for m in record["methods"] if not m["ok"]] == ["decode"]
    assert "encode" in {m["method"] for m in record["methods"] if m["runs"]}
    built.edit("partition_configs/pair.yaml", "timeout: 3", "timeout: 300")
    assert built.doit("validate") == 0, built.output
    built.edit("partition_configs/pair.yaml", "timeout: 300", "timeout: 30")  # it isn't in a key
    assert built.doit("plan") == 0
    assert "partition_configs/pair.yaml, whose lines the report quotes, changed" in built.output
