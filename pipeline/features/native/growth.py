"""Runs a package and the accepted one alternately on the same device.

Absolute times mean little on a shared or hot machine, and times from another day mean nothing.
Whatever slows down one of two alternating packages slows down the other one too.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from pipeline.devices.interface import DeviceError, PackageFiles
from pipeline.features.native.calls import KeptCall
from pipeline.features.native.device import NativeDevice
from pipeline.features.native.setups import EMULATED
from pipeline.features.native.timing import (
    DeviceTiming,
    bound_median,
    round_time,
)
from pipeline.store.blobs import MissingBlobError
from pipeline.store.digest import Digest
from pipeline.store.store import Store

Json = dict[str, Any]
_MOST_PAIRS = 20
_LEAST_PAIRS = 6  # fewer can't give a 95 % interval
_SECONDS = 1.0  # time limit for the pairs of a method, which the first six may exceed
_MOST_SECONDS = 10.0  # time limit for all pairs, the first six included


def open_accepted(
    store: Store, accepted: Mapping[str, Digest]
) -> tuple[PackageFiles | None, str]:
    """Return the accepted package from the store, or None and the reason why it isn't available."""
    if not accepted:
        return None, "the baseline names no files; `doit baseline` writes them"
    paths = {}
    try:
        for name, digest in sorted(accepted.items()):
            paths[name] = store.verified_path(digest)
    except MissingBlobError:
        return None, f"the store no longer has the baseline's {name}"
    ptes = [name for name in paths if name.endswith(".pte")]
    if len(ptes) != 1:
        return None, "the baseline names no .pte file"
    ptds = [path for name, path in paths.items() if name.endswith(".ptd")]
    return PackageFiles(ptes[0], paths[ptes[0]], tuple(ptds)), ""


def measure_growth(
    device: NativeDevice,
    now: PackageFiles,
    then: PackageFiles,
    sequence: Sequence[KeptCall],
    timing: DeviceTiming,
) -> Json:
    """Run a sequence of calls alternately in two packages, each in its own process.

    Returns:
        The relative growth of latency and memory, and the medians of both packages. The growth of
        latency is what the pairs of calls show with 95 % confidence: the bound of the interval that
        is nearer to 0, or 0 if the interval contains 0. If the device fails, only a `reason`.
    """
    packages = {"then": then, "now": now}
    times: dict[str, list[float]] = {"then": [], "now": []}
    loaded: dict[str, Any] = {}
    started = time.monotonic()
    try:
        for name, files in packages.items():
            loaded[name] = _load(device, files, sequence)
            _run(loaded[name], sequence, timing.warm_up, 0.0)
        while len(times["now"]) < (timing.calls or _MOST_PAIRS):
            order = ("then", "now") if len(times["now"]) % 2 else ("now", "then")
            for name in order:
                if sequence[0].judged.step:
                    loaded[name] = _load(device, packages[name], sequence)
                took = _run(loaded[name], sequence, 0, timing.pause)
                times[name].append(took)
            seconds = time.monotonic() - started
            is_enough = timing.calls is None and len(times["now"]) >= _LEAST_PAIRS
            is_enough = is_enough and seconds > _SECONDS
            if is_enough or seconds > _MOST_SECONDS:
                break
        memory = {name: _measure_memory(device, loaded[name]) for name in packages}
    except DeviceError as error:
        return {
            "reason": f"alternating calls with the baseline's package: {error.reason}"
        }
    pairs = zip(times["now"], times["then"], strict=True)
    low, high = bound_median([after / before - 1 for after, before in pairs])
    return {
        "latency": round_time(max(low, min(high, 0.0))),
        "latency_then": round_time(median(times["then"])),
        "latency_now": round_time(median(times["now"])),
        "latency_unit": "ms",
        "pairs": len(times["now"]),
        "memory": round_time(memory["now"] / max(memory["then"], 1) - 1),
        "memory_then": memory["then"],
        "memory_now": memory["now"],
        "memory_unit": "bytes",
    }


def _load(
    device: NativeDevice, files: PackageFiles, sequence: Sequence[KeptCall]
) -> dict[str, Any]:
    methods = list(dict.fromkeys(call.method for call in sequence))
    return device.load_together(files, methods)


def _run(
    loaded: Mapping[str, Any], sequence: Sequence[KeptCall], warm_up: int, pause: float
) -> float:
    """Return the milliseconds that a sequence's calls take.

    Stateful methods get no warm-up, since it would change their state.
    """
    if sequence[0].judged.step:
        warm_up = 0
    milliseconds = 0.0
    for call in sequence:
        methods, name = loaded[call.method]
        _, times, _ = methods.call(name, call.values, 1, warm_up, pause)
        milliseconds += sum(times)
    return milliseconds


def _measure_memory(device: NativeDevice, loaded: Mapping[str, Any]) -> int:
    methods, _ = next(iter(loaded.values()))
    memory = methods.measure_memory()
    if device.name.startswith(EMULATED):
        return memory["planned"] + memory["method"] + memory["temporary"]
    return int(memory["peak"])
