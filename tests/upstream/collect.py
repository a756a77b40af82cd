"""Collects the programs that ExecuTorch's tests lower: runs each test up to that call, unmade."""

from __future__ import annotations

import random
import re
import runpy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock, patch

import executorch.exir
import numpy as np
import pytest
import torch
from torch.export import ExportedProgram

from tests.support.bench import REPOSITORY

SUITE = Path("backends/test/suite")
FOLDERS = (SUITE / "operators", SUITE / "models", Path("backends/xnnpack/test/ops"))
QUANTIZED_FLOWS = tuple(
    f"xnnpack_{kind}"
    for kind in ("dynamic_int8_per_channel", "static_int8_per_channel", "static_int8_per_tensor")
)
FLOWS = ("portable", "xnnpack", *QUANTIZED_FLOWS)  # the suite's; its other backends run elsewhere

# Methods that a test calls on a lowered program, before it continues with its next one.
_AFTER = "check check_not check_count check_node_count partition to_executorch serialize " + (
    "run_method_and_compare_outputs dump_artifact visualize"
)
_PARTITIONER_OPTIONS = (
    "configs",
    "config_precisions",
    "per_op_mode",
    "force_non_static_weights_for_f32_linear",
)


@dataclass(frozen=True)
class Case:
    """A program that a test lowers, and how.

    Attributes:
        name: `<test file>__<test>_<parameters>`, a valid method name.
        test: the test's name in pytest.
        partitioners: ExecuTorch's partitioners, as the test made them.
        options: the keyword arguments of each partitioner.
        edge: the fields of `EdgeCompileConfig` that differ from their defaults.
    """

    name: str
    test: str
    program: ExportedProgram
    partitioners: Sequence[Any]
    options: Sequence[Mapping[str, Any]]
    edge: Mapping[str, Any]

    @property
    def quantized(self) -> bool:
        code = self.program.graph_module.code
        return "quantized_decomposed" in code or "torchao" in code


def find_files(root: Path | None = None, pattern: str = "*") -> list[Path]:
    """Return the test files of an ExecuTorch checkout whose path contains a pattern.

    By default, the installed ExecuTorch is searched.
    """
    root = root or Path(next(iter(executorch.exir.__path__))).parent
    files = [path for folder in FOLDERS for path in sorted((root / folder).glob("test_*.py"))]
    return [path for path in files if Path(f"{path.parent.name}/{path.stem[5:]}").match(pattern)]


def collect(
    files: Sequence[Path], flow: str, select: str = ""
) -> tuple[list[Case], dict[str, str]]:
    """Run the tests of files up to what they lower, with the suite's `flow`.

    Other tests run for the flow "xnnpack" only. This changes the process for good: call it in a
    fork.

    Returns:
        The cases, and the reasons why other tests or files give none.
    """
    if any(path.parent.name == "models" for path in files):
        with suppress(ImportError):  # without it, the reason for having no case is given
            runpy.run_path(str(REPOSITORY / "examples" / "models" / "_torchvision.py"))
    recorder = _Recorder()
    with recorder.in_place_of_executorch(flow):
        options = ["-qs", "--tb=line", "--no-summary", "-c", "/dev/null", "-p", "no:cacheprovider"]
        selected = ["-k", select] if select else []
        pytest.main([*options, *selected, *map(str, files)], plugins=[recorder])
    return recorder.cases, recorder.failed


class _LoweredError(Exception):
    """Ends a test that asks for its lowered program."""


class _Recorder:
    """A pytest plugin, and the functions that tests call instead of ExecuTorch's."""

    def __init__(self) -> None:
        self.cases: list[Case] = []
        self.failed: dict[str, str] = {}
        self._test = ""

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.failed[report.nodeid] = _last_error(report)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and all(case.test != report.nodeid for case in self.cases):
            self.failed[report.nodeid] = _last_error(report)

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        self._test = item.nodeid
        for seed in (torch.manual_seed, random.seed, np.random.seed):
            seed(0)

    @contextmanager
    def in_place_of_executorch(self, flow: str) -> Iterator[None]:
        made = patch.multiple(
            executorch.exir,
            to_edge_transform_and_lower=self.to_edge_transform_and_lower,
            to_edge=lambda program, **given: self.to_edge_transform_and_lower(
                program, partitioner=[partition.XnnpackPartitioner()], **given
            ),
        )
        with made:  # before the harness imports the functions by name
            from executorch.backends.test.harness import Tester
            from executorch.backends.test.suite import flow as flows
            from executorch.backends.test.suite import runner
            from executorch.backends.xnnpack.partition import xnnpack_partitioner as partition

            chosen = {name: each for name, each in flows.all_flows().items() if name == flow}
            original = partition.XnnpackPartitioner.__init__

            def keep_options(self: Any, *args: Any, **given: Any) -> None:
                original(self, *args, **given)
                self.given_options = dict(zip(_PARTITIONER_OPTIONS, args, strict=False)) | given

            with (
                patch.object(flows, "all_flows", lambda: chosen),
                patch.object(runner, "run_test", self._go_on_after(runner.run_test)),
                patch.object(partition.XnnpackPartitioner, "__init__", keep_options),
                patch.multiple(Tester, **dict.fromkeys(_AFTER.split(), _go_on)),
                patch.object(Tester, "get_artifact", _end_after_lowering(Tester.get_artifact)),
            ):
                yield

    def _go_on_after(self, run_test: Any) -> Any:
        """Continue the suite's tests, which lower several programs and end at the first failure."""

        def run(*args: Any, **given: Any) -> MagicMock:
            before = len(self.cases)
            summary = run_test(*args, **given)  # it returns errors
            if len(self.cases) == before:
                self.failed[self._test] = f"{summary.result.name}: {summary.error}"[:300]
            return MagicMock(name="passed")

        return run

    def to_edge_transform_and_lower(
        self,
        programs: Any,
        transform_passes: Any = None,
        partitioner: Any = None,
        constant_methods: Any = None,
        compile_config: Any = None,
        generate_etrecord: bool = False,
    ) -> MagicMock:
        if isinstance(programs, ExportedProgram) and not transform_passes:
            default = vars(executorch.exir.EdgeCompileConfig())
            given = vars(compile_config or executorch.exir.EdgeCompileConfig())
            own = list(partitioner or [])
            self.cases.append(
                Case(
                    self._name(),
                    self._test,
                    programs,
                    own,
                    [getattr(each, "given_options", {}) for each in own],
                    {name: value for name, value in given.items() if value != default[name]},
                )
            )
        else:
            self.failed[self._test] = "lowers several programs, or transforms them first"
        return MagicMock(name="lowered")

    def _name(self) -> str:
        file, _, test = self._test.partition("::")
        name = f"{Path(file).stem[5:]}__{test.replace('test_', '')}"
        name = re.sub(r"\W+", "_", name).strip("_")[:110]
        number = sum(case.test == self._test for case in self.cases)
        return f"{name}_{number}" if number else name


def _last_error(report: Any) -> str:
    lines = [line for line in report.longreprtext.splitlines() if line.startswith("E ")]
    return (lines or report.longreprtext.splitlines() or ["no reason"])[-1].lstrip("E ")[:300]


def _go_on(self: Any, *_: Any, **__: Any) -> Any:
    return self


def _end_after_lowering(original: Any) -> Any:
    def get_artifact(self: Any, stage: Any = None) -> Any:
        found = original(self, stage)
        if isinstance(found, MagicMock):
            raise _LoweredError
        return found

    return get_artifact
