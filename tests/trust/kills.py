"""Kills a driver at a random moment and checks what remains: `python -m tests.trust.kills 100`."""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.features.cache.contents import verify
from pipeline.features.cache.eviction import evict
from pipeline.store.store import Store
from tests.support.bench import Bench, bench_of
from tests.support.processes import wait_for

MARK = "TRUST_KILLS"
# An exporter starts processes, one of which outlives it.
STARTS = (
    "import subprocess, time\n"
    "subprocess.Popen(['sleep', '600'])\n"
    "subprocess.run(['sleep', '0.3'])\n"
)
SHARED_MEMORY = Path("/dev/shm")


@dataclass
class Toll:
    """Damage by kills: processes 2 s later, files after the next run, wrong packages or stored
    files."""

    kills: int = 0
    processes: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    longest: float = 0.0  # seconds until the last process was gone


def marked(mark: str) -> list[str]:
    """Return the command lines of living processes whose environment has a mark."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if f"{MARK}={mark}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                    command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                    found.append(f"{entry.name} {command[:100]}")
            except (OSError, ProcessLookupError):
                continue
    return found


def start(bench: Bench, mark: str, *arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        bench.command(*arguments),
        cwd=bench.root,
        env={**bench.environment, MARK: mark},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def prepare(folder: Path) -> tuple[Bench, bytes, float]:
    """Return a workspace whose exporter starts processes; bytes and time of a run left alone."""
    bench = bench_of("pair", folder)
    exporter = bench.root / "models" / "pair.py"
    exporter.write_text(STARTS + exporter.read_text())
    began = time.monotonic()
    assert start(bench, "none").wait(300) == 0
    return bench, bench.bytes_of("pair", "pair.pte"), time.monotonic() - began


def kill_at(bench: Bench, moment: float, toll: Toll) -> None:
    """Kill a run after `moment` seconds, if it takes that long, and count what remains."""
    mark = f"{os.getpid()}-{toll.kills}"
    driver = start(bench, mark)
    with suppress(subprocess.TimeoutExpired):
        driver.wait(moment)
        return
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    began = time.monotonic()
    while (left := marked(mark)) and time.monotonic() - began < 2:
        time.sleep(0.05)
    toll.kills += 1
    toll.longest = max(toll.longest, time.monotonic() - began)
    toll.processes += [f"{moment:.2f} s: {each}" for each in left]
    if SHARED_MEMORY.is_dir():
        own = re.compile(f"loky-{driver.pid}-|folder_{driver.pid}_")
        toll.files += [name for name in os.listdir(SHARED_MEMORY) if own.search(name)]


def run_again(bench: Bench, expected: bytes, toll: Toll) -> None:
    """Run to the end after killed runs, and count what is wrong then."""
    if start(bench, "none").wait(300) or bench.bytes_of("pair", "pair.pte") != expected:
        toll.wrong.append(f"after {toll.kills} kills")
    store = Store(bench.store)
    toll.wrong += map(str, verify(store))
    evict(store, 1 << 40)
    toll.files += map(str, (store.root / "locks").iterdir())
    for folder in (bench.root / "build", bench.store):
        toll.files += [str(p) for p in folder.rglob("*") if p.name.startswith(".tmp-")]
        toll.files += map(str, folder.rglob("*.progress"))


def main(kills: int, between: int = 5, seed: int = 14) -> Toll:
    """Kill runs, more of them early on, while workers start and import torch.

    About half of the runs start from what the previous one left, the others from scratch. After
    every `between` kills, one run completes.
    """
    toll, moments = Toll(), random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        bench, expected, seconds = prepare(Path(folder))
        print(f"a run takes {seconds:.1f} s", flush=True)
        while toll.kills < kills:
            if moments.random() < 0.5:
                for each in (bench.root / "build", bench.store):
                    shutil.rmtree(each, ignore_errors=True)
            before = toll.kills
            kill_at(bench, 0.05 + moments.random() ** 2 * seconds, toll)
            if toll.kills > before and toll.kills % between == 0:
                run_again(bench, expected, toll)
                print(toll, flush=True)
    wait_for(lambda: not marked("none"), 5)
    return toll


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
