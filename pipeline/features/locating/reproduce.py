"""Writes and runs the reproduction of a failure, a folder next to the package.

It holds the calls that show the failure, their expected outputs, and a script that runs them. It is
read and written without pickle.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram

from pipeline.config.validation import Limits
from pipeline.devices.interface import DeviceError, PackageFiles
from pipeline.devices.package_data import read_package
from pipeline.devices.session import INTERPRETER, Session
from pipeline.features.locating.case import (
    Located,
    MethodCall,
    describe_error,
    run_until,
)
from pipeline.features.locating.interpreter.execute import read_results
from pipeline.program.eager import Source
from pipeline.program.inputs import InputSet, load_inputs, save_inputs
from pipeline.program.operator_libraries import load_libraries
from pipeline.program.signature import flatten, lay_out
from pipeline.store.errors import PipelineError
from pipeline.store.files import record_bytes
from pipeline.validate.limits import OutputLimits, check_limits
from pipeline.validate.metrics import compare

FOLDER = "reproduce"
_RECORD = "reproduce.json"
_INPUTS, _EXPECTED, _VALUE = (
    f"{n}.safetensors" for n in ("inputs", "expected", "divergence")
)
_SCRIPT = '''"""Shows how the method '{method}' of '{package}' fails, and where it diverges first.

Run it with the project installed: python {place}/reproduce.py
It exits with 1 while the method fails, with 0 once it is fixed, and with 2 if it can't run.
"""

import sys
from pathlib import Path

from pipeline.features.locating.reproduce import main

sys.exit(main(Path(__file__).resolve().parent{operators}))
'''


def make_reproduction(
    package: str,
    method: str,
    names: Sequence[str],
    programs: Mapping[str, ExportedProgram],
    limits: Sequence[Limits],
    located: Located,
    operators: Sequence[str] = (),
) -> dict[str, bytes]:
    """Return the files that reproduce a method's failure, by path in the package's folder.

    Args:
        names: the names of the package's own files.
        programs: by method, the program that the package is compared with.
        limits: the limits of each output of the failing call.
        operators: the libraries of operators that the workspace loads for the package.
    """
    calls = [(name, flatten(programs[name], inputs)) for name, inputs in located.calls]
    sources = Source.with_common_state({name: programs[name] for name, _ in calls})
    expected = [sources[name].run_flat(inputs) for name, inputs in calls]
    diverges = [
        {"instruction": compared.index, "output": compared.output, "call": call}
        for call, compared in located.first.items()
    ]
    record = {
        "package": package,
        "method": method,
        "files": sorted(name for name in names if name.endswith((".pte", ".ptd"))),
        "limits": [compared.model_dump() for compared in limits],
        "calls": [
            {"method": m, "layouts": [_dim_order(v) for v in flat_inputs]}
            for m, flat_inputs in calls
        ],
        "culprits": list(located.culprits),
        "notes": list(located.notes),
        "diverges": next(iter(diverges), None),
    }
    folder = f"{FOLDER}/{method}"
    place = f"build/{package}/{folder}"
    named = ""
    if operators:
        named = f", {json.dumps(list(operators))}"
    script = _SCRIPT.format(
        method=method, package=package, place=place, operators=named
    )
    files = {
        "reproduce.py": script.encode(),
        _RECORD: record_bytes(record, sort_keys=False),
        _INPUTS: _save([inputs for _, inputs in calls]),
        _EXPECTED: _save(expected),
    }
    for compared in located.first.values():
        files[_VALUE] = _save([[compared.expected]])
    return {f"{folder}/{name}": content for name, content in files.items()}


def _save(calls: Sequence[Sequence[Any]]) -> bytes:
    return save_inputs(
        [InputSet(tuple(v), {}, f"call {n}") for n, v in enumerate(calls, 1)]
    )


def _dim_order(value: Any) -> list[int] | None:
    if isinstance(value, torch.Tensor):
        return list(value.dim_order())
    return None


def main(folder: Path, operators: Sequence[str] = ()) -> int:
    """Run the reproduction in a folder and print the outcome.

    Args:
        operators: libraries to load first, from the workspace whose `build/` has the folder.

    Returns:
        0 if it passes, 1 while it fails, 2 if it can't run.
    """
    record = json.loads((folder / _RECORD).read_bytes())
    try:
        load_libraries(operators, folder.parents[3])
        return _reproduce(folder, record)
    except PipelineError as error:
        print(f"{record['package']}: method '{record['method']}': {error}")
        return 2


def _reproduce(folder: Path, record: Mapping[str, Any]) -> int:
    paths = [folder.parents[1] / name for name in record["files"]]
    pte = next(path for path in paths if path.suffix == ".pte")
    files = PackageFiles.of(pte, [path for path in paths if path.suffix == ".ptd"])
    input_sets = load_inputs((folder / _INPUTS).read_bytes())
    calls: list[MethodCall] = []
    for input_set, call in zip(input_sets, record["calls"], strict=True):
        pairs = zip(input_set.args, call["layouts"], strict=True)
        calls.append(
            (call["method"], [v if o is None else lay_out(v, o) for v, o in pairs])
        )
    expected = [
        input_set.args for input_set in load_inputs((folder / _EXPECTED).read_bytes())
    ]
    limits = [OutputLimits(**input_set) for input_set in record["limits"]]
    lines = list(_run(files, calls, expected, limits))
    failed = any(wrong for _, wrong in lines)
    shown = [line for line, _ in lines]
    if failed:
        shown += [culprit["what"] for culprit in record["culprits"]]
        if where := record["diverges"]:
            (expected_value,) = load_inputs((folder / _VALUE).read_bytes())[0].args
            shown += _divergence(files, calls, where, expected_value)
        shown += record["notes"]
    print(f"{record['package']}: method '{record['method']}'")
    for line in shown:
        print(f"  {line}")
    print("it fails" if failed else "it passes")
    return int(failed)


def _run(
    files: PackageFiles,
    calls: Sequence[MethodCall],
    expected: Sequence[Sequence[Any]],
    limits: Sequence[Limits],
) -> Iterator[tuple[str, bool]]:
    """Yield a line for each output of each call, and whether that output fails."""
    methods = list(dict.fromkeys(method for method, _ in calls))
    session = Session(files, INTERPRETER if len(methods) > 1 else "")
    if len(methods) > 1:  # they share state
        session.load_together(methods)
    for number, ((method, inputs), expected_outputs) in enumerate(
        zip(calls, expected, strict=True), 1
    ):
        try:
            actual = session.run(method, inputs)
        except DeviceError as refused:
            yield f"call {number}: {refused.reason}", True
            return
        if len(actual) != len(expected_outputs):
            yield (
                f"call {number}: returns {len(actual)} outputs, must return "
                f"{len(expected_outputs)}",
                True,
            )
        for place, (a, e) in enumerate(zip(actual, expected_outputs, strict=False)):
            error = compare(a, e)
            output_limits = limits[place] if place < len(limits) else Limits()
            wrong = list(check_limits(error, a, e, output_limits))
            verdict = "passes"
            if wrong:
                verdict = f"FAILS: {'; '.join(wrong)}"
            yield (
                f"call {number}, output {place}: {describe_error(error)}: {verdict}",
                bool(wrong),
            )


def _divergence(
    files: PackageFiles,
    calls: Sequence[MethodCall],
    where: Mapping[str, int],
    expected: torch.Tensor,
) -> Iterator[str]:
    """Recompute the first diverging value in the interpreter, and describe its error."""
    number = where["instruction"]
    try:
        loaded = run_until(read_package(files), calls[: where["call"] + 1], number)
        if loaded is not None:
            actual = read_results(loaded, number)[where["output"]].reshape(
                expected.shape
            )
            error = describe_error(compare(actual, expected))
            yield f"instruction {number}: {error} from the expected values"
    except Exception as error:  # a damaged package may not run at all
        yield f"instruction {number} could not be examined: {error}"
