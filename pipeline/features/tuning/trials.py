"""Trials: variants of a package, built in a folder of their own in the user's `build/`.

Each variant has its own config in `build/.tune/<package>`, named by a digest of its meaning. A doit
run builds a batch of variants there with the ordinary actions, from the same sources and with the
same store. So work that variants share is done once, an interrupted search continues, and nothing
that the store has is built again.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml
from filelock import FileLock, Timeout

from pipeline.cli.grammar import quoted
from pipeline.config.compose import Document
from pipeline.config.parser import parse_document
from pipeline.config.yaml import Dumper
from pipeline.features.tuning.space import Choice, make_trial_data
from pipeline.plan.plan import Plan
from pipeline.plan.trial import TRIAL_BUILD, TRIAL_CONFIGS, make_trial_plan
from pipeline.report.events import RUN
from pipeline.store.digest import hash_json
from pipeline.store.errors import PipelineError
from pipeline.store.files import read_record, remove, write_atomically
from pipeline.store.workspace import BUILD_VARIABLE, CONFIGS_VARIABLE, Workspace

if TYPE_CHECKING:
    from pipeline.config.models import PackageConfig

FOLDER = ".tune"  # no package can have this name
_LOCK = "lock"
_LOG = "doit.log"
_DATABASE = ".doit.sqlite3"
_COMMENT = "# A trial of `doit tune {package}`, which writes it anew.\n"
_JOBS_VARIABLE = "PTE_PIPELINE_JOBS"
_DIGITS = 10  # of the digest in a trial's name


class Trial(NamedTuple):
    """A variant of a package, and its outcome.

    Attributes:
        number: its position in the search, from 1; 0 for the present config.
        choice: the alternatives; None for the present config.
        name: the name of its package in the folder of trials; "" if its config is invalid.
        figures: the known figures by name, on the first half of the input sets.
        held_out: the accuracy on the second half.
        faults: why it can't be the best, a sentence each.
        violations: by how much it breaks each limit, as a share of the limit; at most 0 if it
            holds.
    """

    number: int
    choice: Choice | None
    name: str
    figures: Mapping[str, float]
    held_out: Mapping[str, float]
    faults: tuple[str, ...]
    violations: tuple[float, ...]


class TrialFolder:
    """The folder in the user's `build/` in which the trials of a package are built.

    Attributes:
        compiled: the number of compiles in the doit runs of this folder.
    """

    def __init__(self, workspace: Workspace, package: str) -> None:
        self._workspace = workspace
        self._package = package
        self._folder = workspace.build / FOLDER / package
        self._names: dict[str, None] = {}
        self.compiled = 0

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep other processes from building trials of the package.

        Raises PipelineError if another process is building them.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        try:
            with FileLock(self._folder / _LOCK, timeout=0):
                yield
        except Timeout as error:
            fault = "another `doit tune` is building its trials"
            raise PipelineError(f"{self._package}: {fault}; wait for it") from error

    def find(self, name: str) -> Path:
        """Return the folder of a trial's package."""
        return self._folder / TRIAL_BUILD / name

    def find_log(self, name: str = _LOG) -> Path:
        """Return the path of a log of the search; by default, of the doit run that builds it."""
        return self._folder / name

    def make_plan(self) -> Plan:
        """Return the plan of the trials whose configs are written, after their exports."""
        return make_trial_plan(self._workspace, self._folder)

    def identify(self, document: Document) -> tuple[str, PackageConfig]:
        """Return the name of a trial, which configs with the same meaning share, and its config.

        Raises ConfigErrors.
        """
        config = parse_document(self._package, document)
        return f"{self._package}-{hash_json(config.resolved())[:_DIGITS]}", config

    def add(self, document: Document) -> str:
        """Write the config of a trial, and return its name."""
        name, _ = self.identify(document)
        if name not in self._names:
            data = make_trial_data(document)
            text = yaml.dump(data, None, Dumper, sort_keys=False, allow_unicode=True)
            content = (_COMMENT.format(package=self._package) + text).encode()
            path = self._folder / TRIAL_CONFIGS / f"{name}.yaml"
            if not path.exists() or path.read_bytes() != content:
                write_atomically(path, content, self._workspace.build)
            self._names[name] = None
        return name

    def build(
        self, group: str, names: Iterable[str], one_by_one: bool = False
    ) -> dict[str, str]:
        """Run a group of tasks, and return the errors of the failed ones, by name.

        Args:
            group: `lower` or `validate` for trials, or `quantize` for their methods.
            one_by_one: whether one task runs at a time, so that tasks don't disturb each other's
                clocks. A cluster's workers still run several.

        Raises:
            PipelineError: the run could not begin.
        """
        targets = list(dict.fromkeys(names))
        tasks = [f"{group}:{quoted(name)}" for name in targets]
        if not tasks:
            return {}
        build = self._folder / TRIAL_BUILD
        build.mkdir(parents=True, exist_ok=True)
        record = build / RUN
        with suppress(OSError):  # an earlier run, whose actions this one may skip
            record.unlink()
        # A separate database, since two doit runs must not write to the same one.
        database = ["--db-file", str(build / _DATABASE)]
        # `-P` keeps the workspace off the path, where a module could hide an installed one.
        command = [sys.executable, "-P", "-m", "doit", *database, *tasks]
        environment = dict(os.environ)
        environment[BUILD_VARIABLE] = str(build)
        environment[CONFIGS_VARIABLE] = str(self._folder / TRIAL_CONFIGS)
        if one_by_one:
            environment[_JOBS_VARIABLE] = "1"
        log = self.find_log()
        status = _run_logged(command, environment, self._workspace.root, log)
        # 1 means that tasks failed, which the record explains; any other nonzero status, that the
        # run itself failed.
        if status not in (0, 1):
            shown_log = os.path.relpath(log, self._workspace.root)
            raise PipelineError(f"nothing could be built; see {shown_log}")
        actions = (read_record(record) or {}).get("actions", ())
        counts = Counter((action["kind"], action["outcome"]) for action in actions)
        self.compiled += counts["compile", "built"]
        return _find_errors(actions, targets)

    def drop_others(self) -> None:
        """Remove trials that the present search did not request."""
        for path in (self._folder / TRIAL_CONFIGS).glob("*.yaml"):
            if path.stem not in self._names:
                remove(path)
                shutil.rmtree(self.find(path.stem), ignore_errors=True)


def _run_logged(
    command: Sequence[str], environment: Mapping[str, str], root: Path, log: Path
) -> int:
    """Run a command, and return its exit status; end it if this process is interrupted."""
    with open(log, "wb") as stream:
        process = subprocess.Popen(
            command, cwd=root, env=environment, stdout=stream, stderr=stream
        )
        try:
            return process.wait()
        except BaseException:
            # An interruption must not leave a build running that nobody waits for.
            process.terminate()
            process.wait()
            raise


def _find_errors(
    actions: Sequence[Mapping[str, Any]], names: Sequence[str]
) -> dict[str, str]:
    """Return why trials, or methods of trials, were not built, by name.

    A failed validation doesn't count, since it leaves a report.
    """
    errors: dict[str, str] = {}
    for action in actions:
        package = action["package"]
        if action["kind"] == "validate" or action["outcome"] not in _FAILED:
            continue
        reason = action["error"] or action["reason"] or "not built"
        for name in (package, f"{package}/{action['method']}"):
            if name in names:
                errors.setdefault(name, reason)
    return errors


_FAILED = ("failed", "not-run")
