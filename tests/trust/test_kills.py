"""A killed or stopped driver leaves no process behind, and keeps the record of finished work."""

import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from pipeline.cli.interrupts import Interrupts
from pipeline.run.worker_group import WorkerGroup
from tests.support.processes import descendants, gone, wait_for
from tests.trust import kills

MEMBER = """
import os, subprocess, sys
from pipeline.run.worker_group import join
join(*map(int, sys.argv[1:]))
started = subprocess.Popen(["sleep", "600"])
print(sys.argv[1], os.getpid(), started.pid, os.read(0, 1), flush=True)
started.wait()
"""
OWNER = f"""
import os, subprocess, sys
from pipeline.run.worker_group import WorkerGroup
group = WorkerGroup()
arguments = str(group.number), str(os.getpid())
subprocess.run([sys.executable, "-c", {MEMBER!r}, *arguments])
"""


def test_signals_stay_as_they_are_outside_of_the_main_thread():
    def enter():
        with Interrupts() as interrupts:
            entered.append(interrupts.status)

    entered = []
    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert entered == [0]


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_a_group_dies_with_its_owner_however_that_ends(end):
    owner = subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True)
    leader, member, started, word = owner.stdout.readline().split()
    processes = {int(leader), int(member), int(started)}
    assert descendants(owner.pid) == processes
    assert word == "b''"  # a child process that reads its standard input gets end of file
    owner.send_signal(end)
    owner.wait()
    assert gone(processes, 2)


def test_a_closed_group_has_no_members():
    group = WorkerGroup()
    member = subprocess.Popen(["sleep", "600"], process_group=group.number)
    group.close()
    assert member.wait(2) == -signal.SIGKILL


def test_a_worker_that_comes_too_late_ends():
    group = WorkerGroup()
    group.close()
    code = "import sys\nfrom pipeline.run.worker_group import join\njoin(*map(int, sys.argv[1:]))"
    late = [sys.executable, "-c", code, str(group.number), str(os.getpid())]
    assert subprocess.run(late).returncode == 1


@pytest.mark.slow
def test_killed_drivers_leave_nothing_and_the_next_run_is_right():
    toll = kills.main(5)
    assert toll.kills == 5
    assert not toll.processes and not toll.files and not toll.wrong, toll


METHODS = "{m: export(Decode(shared), (x * k,)) for k, m in enumerate(['decode', *'abcdefgh'])}"


def _take_signals():
    """Restore the signals that nohup and a shell's `&` change for the processes that they start."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ends", "status"),
    [
        pytest.param([signal.SIGINT] * 3, 130, id="Ctrl-C thrice"),
        pytest.param([signal.SIGTERM], 143, id="SIGTERM", marks=pytest.mark.release),
        pytest.param(
            [signal.SIGHUP, signal.SIGTERM], 129, id="closed terminal", marks=pytest.mark.release
        ),
    ],
)
def test_what_was_done_before_a_run_was_stopped_is_recorded(bench, ends, status, tmp_path):
    (temporary := tmp_path / "temporary").mkdir()
    bench = bench("pair")
    exporter = bench.root / "models" / "pair.py"
    text = exporter.read_text()
    exporter.write_text(text[: text.index("    return {")] + f"    return {METHODS}\n")
    units = "".join(f"  {m}: {{partitioners: []}}\n" for m in ("decode", *"abcdefgh"))
    config = bench.root / "partition_configs" / "pair.yaml"
    config.write_text(f"model: pair\nmethods:\n{units}")
    driver = subprocess.Popen(
        bench.command("lower"), cwd=bench.root,
        env={**bench.environment, "TMPDIR": str(temporary)},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        preexec_fn=_take_signals,
    )  # fmt: skip
    seen = 0
    while seen < 4:
        seen += driver.stdout.readline().startswith("built")
    workers = descendants(driver.pid)
    for end in ends:
        driver.send_signal(end)
        time.sleep(0.02)
    printed = driver.stdout.read()
    assert driver.wait(15) == status
    assert "Traceback" not in printed and "not run" in printed
    assert gone(workers, 2)
    assert not list(temporary.iterdir())
    built = {name for name, outcome in bench.outcomes().items() if outcome == "built"}
    events = json.loads((bench.root / "build" / "timeline.json").read_text())["traceEvents"]
    assert len(built) >= 4
    assert built <= {event["name"] for event in events}


HANGING = {
    "reads its standard input": ("import sys\nsys.stdin.read()", 0),
    "ends its process": ("import os\nos._exit(0)", 1),
    "leaves a thread that never ends": (
        "import threading, time\nthreading.Thread(target=time.sleep, args=(600,)).start()", 0,
    ),
    "goes elsewhere and stops heeding signals": (
        "import os, signal\nos.chdir('/')\n"
        "for s in (signal.SIGTERM, signal.SIGINT): signal.signal(s, signal.SIG_IGN)", 0,
    ),
}  # fmt: skip


@pytest.mark.slow
def test_no_exporter_hangs_a_run(bench):
    bench = bench("pair")
    text = (bench.root / "models" / "pair.py").read_text()
    config = (bench.root / "partition_configs" / "pair.yaml").read_text()
    for number, (code, _) in enumerate(HANGING.values()):
        (bench.root / "models" / f"odd{number}.py").write_text(f"{code}\n{text}")
        odd = bench.root / "partition_configs" / f"odd{number}.yaml"
        odd.write_text(config.replace("pair", f"odd{number}"))
    driver = subprocess.Popen(
        bench.command("export"), cwd=bench.root, env=bench.environment, stdin=subprocess.PIPE
    )
    wait_for(lambda: driver.poll() is not None, 180)
    outcomes = bench.outcomes()
    for number, (what, (_, failed)) in enumerate(HANGING.items()):
        assert outcomes[f"export odd{number}"] == ("failed" if failed else "built"), what
    assert outcomes["export pair"] == "built"
