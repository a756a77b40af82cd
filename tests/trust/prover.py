"""A prover for keys: no input that can be perturbed leaves a stale package behind.

    python -m tests.trust.prover [workspace ...] [--kinds KIND ...] [--seed N] [--count N]

Each state of perturbations.py is built twice: in a workspace that has built all previous states,
with its `build/` and its store, and from scratch, in the same folder with an empty store. Both must
leave the same bytes; if they don't, the state is stale. A state is needless if a build repeated
work that gives the same bytes as before; that is an error only for kinds that must never matter.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pipeline.store.digest import hash_bytes, hash_json
from tests.support.bench import REPOSITORY, SAMPLES, Bench
from tests.support.forked import run_doit
from tests.trust.perturbations import HARMLESS, State, perturb, read_workspace

OWN = Path(__file__).with_name("workspaces")
TIMES = re.compile(rb'\d[\d.,]* (s|ms|\xc2\xb5s)\b|(?<=time=")[\d.]+')
VOLATILE = ("seconds", "latency", "peak_bytes")
# Variables that locate the interpreter, or the store of this build.
KEPT = ("PATH", "PWD", "PTE_PIPELINE_STORE", "XDG_CACHE_HOME")
TYPICAL = {
    "LANG": "de_DE.UTF-8", "LC_ALL": "C", "TZ": "Asia/Tokyo", "USER": "somebody", "TERM": "dumb",
    "OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "2", "CUDA_VISIBLE_DEVICES": "", "COLUMNS": "40",
    "NO_COLOR": "1", "SOURCE_DATE_EPOCH": "1", "TORCH_LOGS": "", "PROVEN_GAIN": "1", "CI": "true",
    "HOME": "{folder}", "TMPDIR": "{folder}",
    "PANDAS_FUTURE": "legacy",  # other values keep pandas from being imported
}  # fmt: skip


@dataclass(frozen=True)
class Built:
    """The result of a build: its exit status, and the linked packages' files, without times."""

    code: int
    packages: Mapping[str, Mapping[str, bytes]]

    @property
    def digest(self) -> str:
        parts = [[name, {n: hash_bytes(data) for n, data in files.items()}]
                 for name, files in self.packages.items()]  # fmt: skip
        return hash_json([self.code, parts])


@dataclass(frozen=True)
class Finding:
    """The comparison of one state. `stale` describes the differences; `needless` lists kinds of
    action that were repeated for nothing."""

    state: State
    stale: str
    needless: tuple[str, ...]

    @property
    def wrong(self) -> bool:
        return bool(self.stale or (self.needless and self.state.kind in HARMLESS))

    def __str__(self) -> str:
        found = f"STALE {self.stale}" if self.stale else f"needless {' '.join(self.needless)}"
        return f"{self.state.kind}: {self.state.what}: {found}"


# Changes to a process or a workspace before a build


def _shift(days: int) -> None:
    for name in ("time", "time_ns"):
        real, unit = getattr(time, name), 86400 * (10**9 if name.endswith("ns") else 1)
        setattr(time, name, lambda real=real, unit=unit: real() + days * unit)


def _sow() -> None:
    import numpy
    import torch

    random.seed(7)
    numpy.random.seed(7)
    torch.manual_seed(7)


def _reverse() -> None:
    from pipeline.run import pool

    class Reversed(pool.Pool):  # type: ignore[misc, valid-type]
        def add(self, actions: Any) -> None:
            super().add(list(actions)[::-1])

    pool.Pool = Reversed  # type: ignore[misc]


def _install(name: str) -> None:
    """Put another version of a distribution with this name first on the path."""
    site = Path(tempfile.mkdtemp())
    info = site / f"{name}-99.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 99.0\n")
    sys.path.insert(0, str(site))


PROCESS: Mapping[str, Callable[[], Any]] = {
    "later": lambda: _shift(400),
    "earlier": lambda: _shift(-400),
    "umask": lambda: os.umask(0o077),
    "seeds": _sow,
    "reversed": _reverse,
}


def _files(root: Path) -> list[Path]:
    tops = [path for path in root.iterdir() if path.name not in ("build", ".store")]
    inner = [path for top in tops if top.is_dir() for path in top.rglob("*")]
    return [path for path in (*tops, *inner) if path.is_file() and "__pycache__" not in path.parts]


def _touch(bench: Bench) -> None:
    for path in _files(bench.root):
        os.utime(path, (1e9, 1e9))


def _copy(bench: Bench) -> None:
    for path in _files(bench.root):
        shutil.copy(path, other := path.with_name(f"{path.name}~"))
        other.replace(path)


def _drop(*names: str) -> Callable[[Bench], None]:
    def drop(bench: Bench) -> None:
        shutil.rmtree(bench.root / "build", ignore_errors=True)
        for name in names:
            shutil.rmtree(bench.root / name, ignore_errors=True)
            (bench.root / name).unlink(missing_ok=True)

    return drop


def _drop_half(name: str) -> Callable[[Bench], None]:
    def drop(bench: Bench) -> None:
        shutil.rmtree(bench.root / "build", ignore_errors=True)
        found = sorted(path for path in (bench.store / name).rglob("*") if path.is_file())
        for path in found[::2]:
            path.chmod(0o600)
            path.write_bytes(path.read_bytes()[:-1])
        for path in found[1::3]:
            path.unlink(missing_ok=True)

    return drop


WORKSPACE: Mapping[str, Callable[[Bench], None]] = {
    "touched": _touch,
    "copied": _copy,
    "no build": _drop(),
    "no stamps": _drop("build/.files.json"),
    "no state": _drop(".doit.sqlite3"),
    "no results": _drop_half("actions"),
    "no blobs": _drop_half("blobs"),
}


class Prover:
    """Builds states of one workspace, warm and cold, in a folder.

    Args:
        fault: applied to the process of every build with a store, to show that faults are found.
    """

    def __init__(self, base: State, folder: Path, fault: Callable[[], None] = lambda: None) -> None:
        self.base, self.folder, self.fault = base, folder, fault
        self.bench = Bench(folder / "workspace")
        self.seen = folder / "variables"
        self._cold: dict[str, Built] = {}
        self._known: set[str] = set()
        folder.mkdir(parents=True, exist_ok=True)
        self.check(base)

    def variables(self) -> dict[str, str]:
        """Return the environment variables that builds were seen to read, with other values."""
        names = set(self.seen.read_text().split("\n")) if self.seen.exists() else set()
        names -= {"", *KEPT}
        told = {n: _other(n) for n in sorted(names) if not n.startswith("PYTEST")}
        (other := self.folder / "elsewhere").mkdir(exist_ok=True)
        return told | {name: value.format(folder=other) for name, value in TYPICAL.items()}

    def check(self, state: State) -> Finding:
        """Build a state both ways and compare the results."""
        _write(state, self.bench.root)
        warm = self._build(state, fault=True)
        done = _done_again(self.bench.root)
        cold = self._build_cold(state)
        stale = _compare(warm, cold)
        usual = cold.digest
        needless = done if usual in self._known and state.kind != "cache" else ()
        self._known.add(usual)
        return Finding(state, stale, () if stale else needless)

    def _build_cold(self, state: State) -> Built:
        done = [each for each in state.done if each not in WORKSPACE and each != "moved"]
        parts = {path: hash_bytes(data) for path, data in state.files.items()}
        name = hash_json([parts, dict(state.environment), done, list(state.tasks)])
        if name not in self._cold:
            aside = self.bench.root.rename(self.folder / "aside")
            _write(state, self.bench.root)
            self._cold[name] = self._build(replace(state, done=tuple(done)))
            shutil.rmtree(self.bench.root)
            aside.rename(self.bench.root)
        return self._cold[name]

    def _build(self, state: State, fault: bool = False) -> Built:
        bench = self.bench
        for each in state.done:
            WORKSPACE.get(each, lambda bench: None)(bench)
        moved = bench.root.with_name("moved")
        root = bench.root.rename(moved) if "moved" in state.done else bench.root
        (root / "build" / "run.json").unlink(missing_ok=True)

        def prepare() -> None:
            if fault:
                self.fault()
            _listen(self.seen)
            for each in state.done:
                name, _, argument = each.partition(" ")
                if name == "version":
                    _install(argument)
                else:
                    PROCESS.get(each, lambda: None)()

        own = {"PTE_PIPELINE_STORE": str(root / ".store"), "PTE_PIPELINE_JOBS": "2"}
        environment = {**os.environ, **own, **state.environment}
        code, bench.output = run_doit(root, state.tasks, environment, 600, prepare)
        built = Built(code, _read_packages(root))
        if root != bench.root:
            root.rename(bench.root)
        return built


def _other(variable: str) -> str:
    return "1" if variable.startswith("PANDAS_FUTURE_") else "7"  # or pandas can't be imported


def _write(state: State, root: Path) -> None:
    """Write the files of a state to a folder; unchanged files aren't touched."""
    root.mkdir(exist_ok=True)
    for path in _files(root):
        name = path.relative_to(root).as_posix()
        if name not in state.files and not name.startswith(".doit"):
            path.unlink()
    for name, data in state.files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.is_file() or path.is_symlink() or path.read_bytes() != data:
            path.unlink(missing_ok=True)
            path.write_bytes(data)
    for folder in sorted(root.rglob("*"), reverse=True):
        inside = folder.relative_to(root).parts[0]
        if folder.is_dir() and inside not in ("build", ".store") and not any(folder.iterdir()):
            folder.rmdir()


def _listen(path: Path) -> None:
    """Record which environment variables this process reads."""
    known: set[str] = set()

    class Listening(os._Environ):  # type: ignore[type-arg]
        def __getitem__(self, key: Any) -> Any:
            if isinstance(key, str) and key not in known:
                known.add(key)
                with open(path, "a") as file:
                    file.write(f"{key}\n")
            return super().__getitem__(key)

    os.environ.__class__ = Listening  # type: ignore[assignment]


def _read_packages(root: Path) -> dict[str, dict[str, bytes]]:
    """Return the files of each package that the last run linked."""
    outcomes = _outcomes(root)
    linked = {name for kind, name in outcomes if kind == "link"}
    wrong = {name for (kind, name), ok in outcomes.items() if kind != "validate" and not ok}
    return {
        name: {
            path.relative_to(root / "build" / name).as_posix(): _settled(path)
            for path in sorted((root / "build" / name).rglob("*"))
            if path.is_file()
        }
        for name in sorted(linked - wrong)
    }


def _outcomes(root: Path) -> dict[tuple[str, str], bool]:
    """Return whether all actions of each kind and package succeeded."""
    found: dict[tuple[str, str], bool] = {}
    path = root / "build" / "run.json"
    actions = json.loads(path.read_text())["actions"] if path.exists() else []
    for action in actions:
        key = action["kind"], str(action["package"])
        ok = action["outcome"] in ("built", "hit", "refit", "up-to-date")
        found[key] = found.get(key, True) and ok
    return found


def _done_again(root: Path) -> tuple[str, ...]:
    path = root / "build" / "run.json"
    actions = json.loads(path.read_text())["actions"] if path.exists() else []
    return tuple(sorted({each["kind"] for each in actions if each["outcome"] == "built"}))


def _settled(path: Path) -> bytes:
    """Return a file without the times of a run."""
    data = path.read_bytes()
    if path.suffix == ".json":
        return json.dumps(_without(json.loads(data)), sort_keys=True).encode()
    return TIMES.sub(b"_", data) if path.suffix in (".html", ".md", ".xml") else data


def _without(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without(each) for name, each in value.items() if name not in VOLATILE}
    return [_without(each) for each in value] if isinstance(value, list) else value


def _compare(warm: Built, cold: Built) -> str:
    if warm.code != cold.code:
        return f"ends with {warm.code}, from nothing with {cold.code}"
    for package in {*warm.packages, *cold.packages}:
        ours, other = warm.packages.get(package), cold.packages.get(package)
        if ours is None or other is None:
            return (
                f"{package} is {'not linked' if ours is None else 'linked'} in the warm one alone"
            )
        if ours != other:
            names = sorted(n for n in {*ours, *other} if ours.get(n) != other.get(n))
            where = _first_difference(ours.get(names[0], b""), other.get(names[0], b""))
            return f"{package}: other bytes of {', '.join(names)}: {where}"
    return ""


def _first_difference(ours: bytes, other: bytes) -> str:
    if ours[:1] == other[:1] == b"{":
        return "; ".join(_differences(json.loads(ours), json.loads(other), "")[:3])
    place = next((n for n, (a, b) in enumerate(zip(ours, other, strict=False)) if a != b), 0)
    near = slice(max(0, place - 60), place + 30)
    return f"{ours[near]!r}, from nothing {other[near]!r}"


def _differences(ours: Any, other: Any, where: str) -> list[str]:
    """Describe how two JSON values differ."""
    if ours == other:
        return []
    if isinstance(ours, dict) and isinstance(other, dict):
        names = sorted({*ours, *other})
        return [d for n in names for d in _differences(ours.get(n), other.get(n), f"{where}.{n}")]
    return [f"{where}: {str(ours)[:60]}, from nothing {str(other)[:60]}"]


def prove(prover: Prover, states: Iterable[State], say: Callable[[str], Any]) -> list[Finding]:
    """Check states; report each stale or needless finding, and the number of states."""
    findings = []
    for state in states:
        finding = prover.check(state)
        findings.append(finding)
        if finding.stale or finding.needless:
            say(str(finding))
    tried, wrong = Counter(f.state.kind for f in findings), [f for f in findings if f.wrong]
    say("tried: " + ", ".join(f"{kind} {n}" for kind, n in sorted(tried.items())))
    needless = Counter(f.state.kind for f in findings if f.needless)
    say("needless: " + (", ".join(f"{kind} {n}" for kind, n in sorted(needless.items())) or "none"))
    say(f"{len(findings)} states, {sum(bool(f.stale) for f in findings)} stale, {len(wrong)} wrong")
    return findings


def sample(states: list[State], seed: int, count: int, kinds: Iterable[str] = ()) -> list[State]:
    """Return some states of these kinds, in the seed's order: one of each kind, then any."""
    wanted = set(kinds)
    shuffled = [state for state in states if not wanted or state.kind in wanted]
    random.Random(seed).shuffle(shuffled)
    firsts = list({state.kind: state for state in reversed(shuffled)}.values())
    return (firsts + [state for state in shuffled if state not in firsts])[:count]


def find_workspace(name: str) -> Path:
    """Return the folder of a workspace: a path, a sample's name, or `shipped`."""
    if name == "shipped":
        return REPOSITORY
    return next((root / name for root in (OWN, SAMPLES) if (root / name).is_dir()), Path(name))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workspaces", nargs="*", default=["quantized", "joint", "pair", "archives"])
    parser.add_argument("--kinds", nargs="*", default=())
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=10**6)
    given = parser.parse_args()
    wrong = 0
    for name in given.workspaces:
        print(f"{name}:", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            prover = Prover(read_workspace(find_workspace(name)), Path(folder))
            states = list(perturb(prover.base, prover.variables()))
            chosen = sample(states, given.seed, given.count, given.kinds)
            findings = prove(prover, chosen, lambda text: print(f"  {text}", flush=True))
            wrong += sum(finding.wrong for finding in findings)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
