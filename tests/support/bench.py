"""Workspaces in test folders, and doit run in them as a user would run it."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.store.file_digests import RACY_NS
from tests.support.forked import run_doit
from tests.support.resident import run_python

REPOSITORY = Path(__file__).resolve().parents[2]
TESTS = REPOSITORY / "tests"
SAMPLES = TESTS / "samples"
DATA = TESTS / "data"


@dataclass
class Bench:
    """A workspace with a store, both in a folder of the test.

    `allow` lists the verdicts with which a run still succeeds, since most tests aren't about
    judging packages.
    """

    root: Path
    output: str = ""
    allow: str = "not-judged,not-run"

    @property
    def store(self) -> Path:
        return self.root / ".store"

    @property
    def environment(self) -> dict[str, str]:
        # Workers of pytest-xdist have COLUMNS=80, to which tables would be cut.
        inherited = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
        return {
            **inherited,
            "PTE_PIPELINE_STORE": str(self.store),
            "PTE_PIPELINE_JOBS": "2",
            "PTE_PIPELINE_ALLOW": self.allow,
        }

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "doit", *arguments]

    def doit(self, *arguments: str, timeout: float = 300, **environment: str) -> int:
        """Run doit in a fork of this process, and keep its output in `output`.

        If a variable that Python reads at startup is set, doit runs in a new process instead.
        """
        if any(name.startswith("PYTHON") for name in environment):
            return self.process(*arguments, timeout=timeout, **environment)
        given = {**self.environment, **environment}
        code, self.output = run_doit(self.root, arguments, given, timeout)
        return code

    def process(self, *arguments: str, timeout: float = 300, **environment: str) -> int:
        """Run doit with workers in a process that imports our modules afresh (`resident.py`).

        Its output is kept in `output`.
        """
        given = {**self.environment, **environment}
        words = self.command(*arguments)[1:]
        done = run_python(*words, cwd=self.root, env=given, timeout=timeout, merged=True)
        self.output = done.stdout
        return done.returncode

    def settle(self) -> None:
        """Wait until the digests of files just written can be remembered; see `RACY_NS`."""
        time.sleep(2 * RACY_NS / 1e9)

    def actions(self) -> list[dict[str, Any]]:
        return json.loads((self.root / "build" / "run.json").read_text())["actions"]

    def outcomes(self) -> dict[str, str]:
        """Return the outcome of each action of the last run, keyed by `kind package/method`."""
        return {
            " ".join(
                [a["kind"], "/".join(n for n in (a["package"], a["method"]) if n) or a["model"]]
            ): a["outcome"]
            for a in self.actions()
        }

    def bytes_of(self, package: str, name: str) -> bytes:
        return (self.root / "build" / package / name).read_bytes()

    def snapshot(self) -> dict[Path, tuple[int, int]]:
        """Return the size and the modification time of each file; in the store, only the size.

        The store updates the modification time of a file at each use.
        """
        return {
            path: (path.stat().st_size, path.is_relative_to(self.store) or path.stat().st_mtime_ns)
            for path in self.root.rglob("*")
        }

    def edit(self, name: str, old: str, new: str) -> None:
        path = self.root / name
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))


def bench_of(sample: str, folder: Path) -> Bench:
    return Bench(Path(shutil.copytree(SAMPLES / sample, folder / sample)))
