"""Checks the payloads of delegates that this machine can't run, with checks from their backends.

It doesn't know what a program should compute.
"""

from __future__ import annotations

from collections.abc import Iterator

from executorch.exir import schema

from pipeline.backends import BACKENDS
from pipeline.backends.entry import PayloadCheck
from pipeline.devices.interface import PackageFiles
from pipeline.devices.package_data import read_package, read_payload
from pipeline.program.plan_values import count_delegate_results


def find_payload_faults(files: PackageFiles, method: str) -> Iterator[str]:
    """Yield a sentence for each fault in the payloads of a method.

    Raises DeviceError if a file can't be read.
    """
    listed = files.plans.get(method)
    checks = _find_checks()
    # Few backends have a check, and reading a package takes time.
    if listed is None or not any(backend in checks for backend, _ in listed.delegates):
        return
    data = read_package(files)
    plan = data.plans[method]
    instructions = [i for chain in plan.chains for i in chain.instructions]
    results = count_delegate_results(plan, instructions)
    for number, outputs in results.items():
        call = instructions[number].instr_args
        delegate = plan.delegates[call.delegate_index]
        check = checks.get(delegate.id)
        if check is None:
            continue
        sizes = [_sizes(plan.values[index].val) for index in call.args]
        split = len(sizes) - outputs
        payload = read_payload(data, delegate)
        yield from check(method, payload, data.named, sizes[:split], sizes[split:])


def _find_checks() -> dict[str, PayloadCheck]:
    checks = {}
    for entry in BACKENDS.values():
        if entry.execution.check_payload:
            checks[entry.backend_id] = entry.execution.check_payload
    return checks


def _sizes(value: object) -> tuple[int, ...] | None:
    if isinstance(value, schema.Tensor):
        return tuple(value.sizes)
    return None
