"""Stores the answers of runtimes about packages.

The key holds the package's files and all distributions of the runtime's environment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.store.digest import Digest, hash_file
from pipeline.store.store import Store

# A query to a runtime: packages, with their files and methods.
Packages = Sequence[Mapping[str, Any]]
# The answers of a runtime, by package and method.
Answers = dict[tuple[str, str], dict[str, Any]]
SCRIPT = Path(__file__).with_name("run_packages.py")
KIND = "runtime"
OUTLINE = {"answers": {str: dict[str, Any]}}
# Marks the answer on a method whose process ended, or that was not run: it may run the next time.
CRASH = "crash"


class KeptAnswers:
    """The answers of the runtime of one environment, as `environments.probe` describes it."""

    def __init__(self, store: Store, environment: Mapping[str, Any]) -> None:
        self._store, self._environment = store, environment
        self._script = hash_file(SCRIPT)

    def find(self, packages: Packages) -> tuple[Answers, Packages]:
        """Return the stored answers, and the packages without any."""
        answers: Answers = {}
        unknown = []
        for package in packages:
            key = self._make_key(package)
            entry = self._store.get_by_key(key) if key else None
            if entry is None:
                unknown.append(package)
                continue
            for method, facts in entry.result["answers"].items():
                answers[package["package"], method] = facts
        return answers, unknown

    def keep(self, packages: Packages, answers: Answers) -> None:
        """Store the answers about packages that ran to the end."""
        for package in packages:
            by_method = {}
            for name, method in methods_of(package):
                by_method[method] = answers.get((name, method), {CRASH: True})
            key = self._make_key(package)
            if key and not any(CRASH in facts for facts in by_method.values()):
                self._store.put_result(key, {"answers": by_method})

    def _make_key(self, package: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the key of the answers about a package, or None if a file can't be read."""
        files: list[Digest] = []
        for path in (package["pte"], *package["ptds"]):
            try:
                files.append(hash_file(Path(path)))
            except OSError:
                return None
        return {
            "kind": KIND,
            "files": files,
            "methods": list(package["methods"]),
            "environment": self._environment,
            "script": self._script,
        }


def methods_of(package: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(package["package"], method) for method in package["methods"]]
