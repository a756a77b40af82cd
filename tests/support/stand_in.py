"""A pool whose workers import neither torch nor ExecuTorch, and perform actions as a test says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# Replaces `perform` in worker processes, and keeps torch and ExecuTorch out.
PREPARE = """
STANDS_IN = {
    "pipeline.run.perform": "performs",
    "pipeline.compile.preprocess.cache": "counts",
    "pipeline.plan.requests": "requested",
    "torch": "threads",
}
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name in STANDS_IN:
            found = importlib.util.find_spec(STANDS_IN[name])
            return importlib.util.spec_from_file_location(name, found.origin)
sys.meta_path.insert(0, Finder())
"""
TORCH = """
set_num_threads = set_num_interop_threads = set_default_device = set_default_dtype = print
float32 = None
"""
COUNTS = """
from contextlib import contextmanager
from types import SimpleNamespace

@contextmanager
def counted_preprocess():
    yield SimpleNamespace(hits=0, misses=0, saved=0, spent=0)
"""
REQUESTS = """
import json
from pipeline.plan.actions import Action

class Inputs(dict):
    sources, configs = {}, {}

def write_request(action, root):
    names = action.kind, action.model, action.package, action.method
    return json.dumps([*names, action.key, action.inputs])

def read_names(text):
    *facts, inputs = json.loads(text)
    return Action(*facts, Inputs(inputs))

def read_request(text, workspace):
    return read_names(text)
"""
RUN = """
import json, sys
from pathlib import Path
from pipeline.plan.actions import Action
from pipeline.plan.requests import Inputs
from pipeline.report.stream import EventStream
from pipeline.run.pool import Pool
from pipeline.store.store import Store
from pipeline.store.workspace import Workspace

root = Path(sys.argv[1])
jobs = int(sys.argv[3])
settings = {"fast_lowering": False, "refit": False}
pool = Pool(Workspace(root, Store(root / ".store"), jobs, **settings), jobs, False)
stream = EventStream(root / "build", jobs=jobs, executor="")
pool.tell(stream)
told = {}
actions = []
for kind, package, where in json.loads(sys.argv[2]):
    actions.append(Action(kind, "m", package, None, {"package": package}, Inputs(where)))
for action, report in pool.run(actions):
    event = report.event
    told[action.package] = [event.error, event.stage, event.peak_bytes]
pool.close()
print(json.dumps(told))
"""


def run_stand_in(
    folder: Path,
    perform: str,
    actions: Sequence[tuple[str, str, Any]],
    jobs: int = 2,
    before: Sequence[str] = (),
) -> dict[str, list[Any]]:
    """Run actions in a pool; return the error, the stage and the peak in bytes of each.

    Args:
        perform: the source of a module with `perform` and `runs_user_code`.
        actions: kind, package and inputs of each action; no two share a package.
        before: a command that wraps the command that follows it.
    """
    (folder / "performs.py").write_text(perform)
    (folder / "counts.py").write_text(COUNTS)
    (folder / "requested.py").write_text(REQUESTS)
    (folder / "threads.py").write_text(TORCH)
    (folder / "sitecustomize.py").write_text("import sys, importlib.util\n" + PREPARE)
    path = os.pathsep.join([str(folder), *sys.path])
    done = subprocess.run(
        [*before, sys.executable, "-c", RUN, str(folder), json.dumps(actions), str(jobs)],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        timeout=600,
        check=True,
    )
    told: dict[str, list[Any]] = json.loads(done.stdout.splitlines()[-1])
    return told
