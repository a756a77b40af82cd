"""What is left beside a package of a method that failed: the calls that show it, what they must
give, and a script that runs them. Read and written without pickle."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from pipeline.devices.interface import DeviceError, PackageFiles
from pipeline.devices.interpreter.execute import given_by, steps, value_of
from pipeline.devices.interpreter.load import load, read_package, shared_memory
from pipeline.devices.session import INTERPRETER, Session
from pipeline.program.inputs import InputSet, load_inputs, save_inputs
from pipeline.program.signature import laid_out
from pipeline.validate.limits import LIMITS, excesses
from pipeline.validate.locate.case import Located, figures
from pipeline.validate.locate.plan_diff import plans
from pipeline.validate.metrics import compare

FOLDER = "reproduce"
_RECORD, _INPUTS, _EXPECTED, _VALUE = (
    "reproduce.json",
    "inputs.safetensors",
    "expected.safetensors",
    "departure.safetensors",
)
_SCRIPT = '''"""Shows how the method '{method}' of '{package}' fails, and where it departs first.

Run it with the project installed: python {place}/reproduce.py
It ends with 1 while the method fails, with 0 when it is mended.
"""

import sys
from pathlib import Path

from pipeline.validate.locate.reproduce import main

sys.exit(main(Path(__file__).resolve().parent))
'''


def reproduction(
    package: str,
    method: str,
    names: Sequence[str],
    calls: Sequence[tuple[str, Sequence[Any]]],
    expected: Sequence[Sequence[Any]],
    limits: Any,
    located: Located,
) -> dict[str, bytes]:
    """The files for a method, by their path in the package's folder.

    Args:
        names: of the package's own files.
        calls: methods, each with flat inputs in the layout that it takes.
        expected: flat outputs of each call.
    """
    record = {
        "package": package,
        "method": method,
        "files": sorted(name for name in names if name.endswith((".pte", ".ptd"))),
        "limits": {name: getattr(limits, name) for name in LIMITS},
        "calls": [
            {"method": name, "layouts": [_order(value) for value in inputs]}
            for name, inputs in calls
        ],
        "culprits": list(located.culprits),
        "notes": list(located.notes),
        "departs": None
        if located.index is None
        else {"instruction": located.index, "output": located.output, "call": located.call},
    }
    folder = f"{FOLDER}/{method}"
    script = _SCRIPT.format(method=method, package=package, place=f"build/{package}/{folder}")
    files = {
        "reproduce.py": script.encode(),
        _RECORD: (json.dumps(record, indent=1, allow_nan=False) + "\n").encode(),
        _INPUTS: _saved([inputs for _, inputs in calls]),
        _EXPECTED: _saved(expected),
    }
    if located.index is not None:
        files[_VALUE] = _saved([[located.expected]])
    return {f"{folder}/{name}": content for name, content in files.items()}


def _saved(calls: Sequence[Sequence[Any]]) -> bytes:
    return save_inputs([InputSet(tuple(v), {}, f"call {n}") for n, v in enumerate(calls, 1)])


def _laid(value: Any, order: Sequence[int] | None) -> Any:
    return value if order is None else laid_out(value, order)


def _order(value: Any) -> list[int] | None:
    return list(value.dim_order()) if isinstance(value, torch.Tensor) else None


@dataclass(frozen=True)
class _Shown:
    record: Mapping[str, Any]
    files: PackageFiles
    calls: list[tuple[str, list[Any]]]
    expected: list[tuple[Any, ...]]


@dataclass(frozen=True)
class _Limits:
    atol: float
    rtol: float
    max_mean_abs: float | None
    max_p999_abs: float | None
    max_relative: float | None
    min_sqnr: float | None
    min_cosine: float | None
    min_agreement: float | None


def main(folder: Path) -> int:
    """Runs what stands in a folder and prints what comes of it; 1 where it still fails."""
    shown = _read(folder)
    lines = list(_outputs(shown))
    failed = any(wrong for _, wrong in lines)
    print(f"{shown.record['package']}: method '{shown.record['method']}'")
    for line, _ in lines:
        print(f"  {line}")
    if failed:
        for culprit in shown.record["culprits"]:
            print(f"  {culprit['what']}")
        for line in (*_departure(shown, folder), *shown.record["notes"]):
            print(f"  {line}")
    print("it fails" if failed else "it passes")
    return int(failed)


def _read(folder: Path) -> _Shown:
    record = json.loads((folder / _RECORD).read_bytes())
    package = folder.parents[1]
    ptds = [package / name for name in record["files"] if name.endswith(".ptd")]
    pte = next(package / name for name in record["files"] if name.endswith(".pte"))
    given = load_inputs((folder / _INPUTS).read_bytes())
    calls = [
        (call["method"], [_laid(v, o) for v, o in zip(each.args, call["layouts"], strict=True)])
        for each, call in zip(given, record["calls"], strict=True)
    ]
    expected = [each.args for each in load_inputs((folder / _EXPECTED).read_bytes())]
    return _Shown(record, PackageFiles.of(pte, ptds), calls, expected)


def _outputs(shown: _Shown) -> Iterator[tuple[str, bool]]:
    """A line for each output of each call, and whether it fails."""
    session = _opened(shown)
    limits = _Limits(**shown.record["limits"])
    pairs = zip(shown.calls, shown.expected, strict=True)
    for number, ((method, inputs), expected) in enumerate(pairs, 1):
        try:
            actual = session.run(method, inputs)
        except DeviceError as refused:
            yield f"call {number}: {refused.reason}", True
            return
        if len(actual) != len(expected):
            yield f"call {number}: gives {len(actual)} outputs, must give {len(expected)}", True
        for place, (a, e) in enumerate(zip(actual, expected, strict=False)):
            error = compare(a, e)
            wrong = list(excesses(error, a, e, limits))
            verdict = f"FAILS: {'; '.join(wrong)}" if wrong else "passes"
            yield f"call {number}, output {place}: {figures(error)}: {verdict}", bool(wrong)


def _opened(shown: _Shown) -> Session:
    """Methods that share state run on the device that lets them."""
    methods = list(dict.fromkeys(method for method, _ in shown.calls))
    if len(methods) == 1:
        return Session(shown.files)
    session = Session(shown.files, INTERPRETER)
    session.load_together(methods)
    return session


def _departure(shown: _Shown, folder: Path) -> Iterator[str]:
    """The value that departed first, computed anew by the interpreter."""
    departs = shown.record["departs"]
    if departs is None:
        return
    wanted = load_inputs((folder / _VALUE).read_bytes())[0].args[0]
    try:
        data = read_package(shown.files)
        every = plans(data)
        names = sorted({name for name, _ in shown.calls})
        shared = shared_memory([every[name] for name in names]) if len(names) > 1 else None
        loaded = {name: load(every[name], data, shared) for name in names}
        for name, inputs in shown.calls[: departs["call"]]:
            for _ in steps(loaded[name], inputs):
                pass
        name, inputs = shown.calls[departs["call"]]
        for number in steps(loaded[name], inputs):
            if number == departs["instruction"]:
                places = given_by(loaded[name], number)
                actual = value_of(loaded[name], places[departs["output"]])
                error = compare(actual.reshape(wanted.shape), wanted)
                yield f"instruction {number}: {figures(error)} from what it must give"
                return
    except Exception as error:  # a damaged package may not run at all
        yield f"instruction {departs['instruction']} could not be looked at: {error}"
