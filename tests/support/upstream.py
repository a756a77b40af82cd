"""ExecuTorch's own delegation tests, run in this process.

`python tests/support/upstream.py ours MODULE... CLASS.TEST...` runs all tests of these modules
except those named, and replaces ExecuTorch's `to_backend` by ours, with a store, in every module
that has it. With `theirs`, nothing is replaced and only the named tests run. Prints, as JSON, the
outcome of each test (a test with failed sub-tests has failed) and how often each module called our
function.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
import tempfile
import unittest
from collections import Counter
from importlib import import_module
from pathlib import Path
from typing import Any

from executorch.exir.backend import backend_api
from executorch.exir.program import _program

PACKAGE = "executorch.exir.backend.test"
THEIRS = backend_api.to_backend


class Outcomes(unittest.TestResult):
    """The outcome of each test, keyed by `Class.test`."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, str] = {}

    def _note(self, test: Any, outcome: str) -> None:
        name = ".".join(test.id().split(".")[-2:])
        if self.found.get(name) != "failed":
            self.found[name] = outcome

    def addSuccess(self, test: Any) -> None:  # noqa: N802
        self._note(test, "passed")

    def addSkip(self, test: Any, reason: str) -> None:  # noqa: N802
        self._note(test, "skipped")

    def addFailure(self, test: Any, error: Any) -> None:  # noqa: N802
        self._note(test, "failed")

    addError = addFailure  # noqa: N815

    def addSubTest(self, test: Any, subtest: Any, error: Any) -> None:  # noqa: N802
        if error is not None:
            self._note(test, "failed")


def put_ours(calls: Counter[str], folder: str) -> None:
    from pipeline import to_backend
    from pipeline.store.store import Store

    store = Store(Path(folder))

    def ours(*given: Any, **more: Any) -> Any:
        calls[current[0]] += 1
        return to_backend(*given, store=store, **more)

    for name, module in list(sys.modules.items()):
        in_place = (
            vars(module).get("to_backend") is THEIRS if hasattr(module, "__dict__") else False
        )
        if in_place and module is not backend_api and not name.startswith("pipeline"):
            module.to_backend = ours  # type: ignore[attr-defined]
    assert _program.to_backend is ours  # used by EdgeProgramManager


current = [""]


def main(whose: str, modules: list[str], tests: list[str]) -> dict[str, Any]:
    calls: Counter[str] = Counter()
    loaded = {name: import_module(f"{PACKAGE}.{name}") for name in modules}
    with tempfile.TemporaryDirectory() as folder:
        if whose == "ours":
            put_ours(calls, folder)
        outcomes: dict[str, dict[str, str]] = {}
        for name, module in loaded.items():
            current[0] = name
            result = Outcomes()
            for test in _tests(unittest.defaultTestLoader.loadTestsFromModule(module)):
                named = ".".join(test.id().split(".")[-2:]) in tests
                if named == (whose == "theirs"):
                    test(result)
            outcomes[name] = result.found
    return {"outcomes": outcomes, "calls": dict(calls)}


def _tests(suite: Any) -> Any:
    for each in suite:
        if isinstance(each, unittest.TestSuite):
            yield from _tests(each)
        else:
            yield each


if __name__ == "__main__":
    whose, *words = sys.argv[1:]
    with contextlib.redirect_stdout(io.StringIO()):
        told = main(
            whose,
            [word for word in words if "." not in word],
            [word for word in words if "." in word],
        )
    print(json.dumps(told))
