"""Validation's verdict on a damaged package, and whether the damage has any visible effect.

A package can end the process that runs it, so each one is judged in a separate process, forked from
one that has the samples ready and runs nothing itself (score.py).
"""

from __future__ import annotations

import multiprocessing
import os
import re
import resource
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from pipeline.config.validation import Limits, ValidateConfig
from pipeline.devices.interface import DeviceError, PackageFiles
from pipeline.devices.session import Session
from pipeline.features.locating.case import Evidence, LoweredMethod
from pipeline.features.locating.locate import locate_failures
from pipeline.program.eager import find_effects
from pipeline.program.graphs import NodePlaces, iter_nodes
from pipeline.program.inputs import InputSet
from pipeline.program.random_inputs import generate_inputs
from pipeline.program.signature import flatten
from pipeline.store.errors import PipelineError
from pipeline.validate.metrics import compare
from pipeline.validate.package import validate_package
from pipeline.validate.results import Validation

from .parts import Culprit, Damage
from .registry import damaged
from .samples import SAMPLES, Files, Sample

CPU_SECONDS = 60  # for one package; a clean one takes less than two
SECONDS = 1800.0  # if it waits forever without using CPU time


Json = dict[str, Any]


def judge(sample: str, damage: str, seed: int) -> Json | None:
    """Judge one damage; `damage` may be "" for no damage.

    Returns:
        None if the sample contains nothing to damage in this way. Otherwise the changes to the
        package (`what`, `culprits`), validation's messages (`sentences`; `found`: the culprits that
        it traced failures to), the result of each of the `methods` that the damage can change
        (`failed`, or one of the following), and its `outcome`:

        - `caught`: all methods that it changes failed, and no others.
        - `survived`: a method gives other results and passed.
        - `tolerated`: other results, within the limits on all of the oracle's inputs.
        - `equivalent`: the same bits on all of them.
        - `misplaced`: a method failed that it does not change.
        - `unclear`: validation itself failed.
        - `crashed`, `hung`: the validating process crashed, or did not end.
    """
    clean = SAMPLES[sample]()
    done = damaged(sample, damage, seed) if damage else (clean.files, Damage("", ()))
    if done is None:
        return None
    files, change = done
    for program in (*clean.programs.values(), *clean.quantized.values()):
        find_effects(program)  # cached for all forks
    if not change.culprits and damage:
        names = [*clean.programs, *clean.constants]
        change = Damage(change.what, tuple(Culprit(name, "") for name in names))
    started = time.perf_counter()
    answer = _in_a_fork(lambda: _judged(clean, files, change, seed))
    return {
        "sample": sample,
        "damage": damage,
        "seed": seed,
        "what": change.what,
        "culprits": [culprit.__dict__ for culprit in change.culprits],
        "seconds": time.perf_counter() - started,
        "methods": {},
        "sentences": [],
        "found": [],
        **answer,
    }


def _in_a_fork(function: Callable[[], Json]) -> Json:
    """Return a function's result, or how its process ended."""
    context = multiprocessing.get_context("fork")
    reading, writing = context.Pipe(duplex=False)
    child = context.Process(target=_answer, args=(function, writing))
    child.start()
    writing.close()
    try:
        answer = reading.recv() if reading.poll(SECONDS) else {"outcome": "hung"}
    except EOFError:
        answer = None
    child.kill()
    child.join()
    if answer is not None:
        return answer
    ended = -(child.exitcode or 0)
    if ended == signal.SIGXCPU:
        return {"outcome": "hung"}
    return {"outcome": "crashed", "sentences": [signal.Signals(ended).name if ended else "exit"]}


def _answer(function: Callable[[], Json], writing: Connection) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS + 1))
    silence = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(silence, stream)
    try:
        writing.send(function())
    except BaseException:  # reported, whatever it is
        last_lines = traceback.format_exc().splitlines()[-3:]
        writing.send({"outcome": "unclear", "sentences": last_lines})


def validated(
    sample: Sample, files: Files, seed: int, divergences: Mapping[str, str] | None = None
) -> Validation:
    """Validate as `doit validate` would.

    Args:
        divergences: how each method's program with observers diverges from the float program.
    """
    with tempfile.TemporaryDirectory() as folder:
        pte = Path(folder, "model.pte")
        pte.write_bytes(files.pte)
        ptds = [Path(folder, f"{stem}.ptd") for stem in files.ptds]
        for path, data in zip(ptds, files.ptds.values(), strict=True):
            path.write_bytes(data)
        usual, dynamic = ValidateConfig(), sample.dynamic
        return validate_package(
            pte,
            ptds,
            sample.programs,
            sample.examples,
            sample.settings(seed),
            sample.constants,
            cases={
                name: usual.select_cases(name, name in sample.quantized, dynamic)
                for name in sample.programs
            },
            sequences=None if sample.shares_state else (),
            quantized=sample.quantized,
            **({"divergences": divergences} if divergences else {}),
        )


def _judged(sample: Sample, files: Files, damage: Damage, seed: int) -> dict[str, Any]:
    torch.set_num_threads(1)
    validation = validated(sample, files, seed)
    failed = {m.method for m in validation.methods if not m.ok}
    if validation.failures and not validation.methods:  # failures of the package as a whole
        failed = set(damage.methods)
    states = {}
    for name in sorted(damage.methods | failed):
        if name in failed:
            changed = name in damage.methods or sample.shares_state  # one damages what all read
            states[name] = "failed" if changed else "misplaced"
        elif name in sample.programs:
            limits = _limits(sample, validation, name, seed)
            states[name] = _seen(sample, files, name, seed, limits)
        else:
            states[name] = "survived"
    return {
        "outcome": _outcome(states, validation.failures),
        "methods": states,
        "sentences": list(validation.failures),
        "found": _found(sample, files, validation, seed),
    }


def _found(sample: Sample, files: Files, validation: Validation, seed: int) -> list[dict[str, Any]]:
    """Return the culprits of all failed methods."""
    if not validation.methods:
        return []
    evidence = Evidence(
        files=_in_memory(files),
        sources=sample.programs,
        limits=sample.settings(seed).select_limits,
        lowered=lambda method: _lowered(sample, method),
        lower_again=_not_again,
        root=Path(__file__).parent,
    )
    located = locate_failures(evidence, validation, sample.examples)
    return [
        {"method": method, **culprit}
        for method, each in located.items()
        for culprit in each.culprits
    ]


def _lowered(sample: Sample, method: str) -> LoweredMethod:
    assert sample.files.emission is not None
    source = sample.programs[method]
    program = sample.quantized.get(method, source)
    instructions = sample.files.emission.instructions(method, program)
    if program is source:
        return LoweredMethod(source, instructions)
    places = NodePlaces(source)
    of = ((place, places.find(node)) for place, node in enumerate(iter_nodes(program)))
    return LoweredMethod(program, instructions, {p: o for p, o in of if o is not None})


def _not_again(method: str) -> Any:
    raise PipelineError(f"{method}: is not lowered again here")


# A failure whose message helps nobody.
_UNCLEAR = re.compile(r"validation stopped at|Traceback|0x[0-9a-f]{8,}")


def _outcome(states: Mapping[str, str], sentences: Sequence[str]) -> str:
    if any(_UNCLEAR.search(sentence) for sentence in sentences):
        return "unclear"
    found = set(states.values())
    for outcome in ("misplaced", "survived", "failed", "tolerated"):
        if outcome in found:
            return "caught" if outcome == "failed" else outcome
    return "equivalent"


def _limits(sample: Sample, validation: Validation, method: str, seed: int) -> Limits:
    """Return the limits of the config, or those derived from the lowered program."""
    given = sample.settings(seed).select_limits(method)
    if given.atol is not None:
        return given
    result = next(each for each in validation.methods if each.method == method)
    return Limits(**(result.wide_quantized_limits or result.wide_limits))


def _seen(sample: Sample, files: Files, method: str, seed: int, limits: Limits) -> str:
    """Return whether a damaged method that passed gives other results than before."""
    worst = "equivalent"
    for sequence in _wide(sample, method, seed):
        sessions = [Session(_in_memory(each)) for each in (sample.files, files)]
        for inputs in sequence:
            leaves = flatten(sample.programs[method], inputs)
            try:
                wanted = sessions[0].run(method, leaves)
            except DeviceError:
                break  # no input for this method
            try:
                given = sessions[1].run(method, leaves)
            except DeviceError:
                return "survived"
            for a, e in zip(given, wanted, strict=True):
                if not torch.is_tensor(e) or torch.equal(_bits(a), _bits(e)):
                    continue
                worst = "tolerated"
                if not _near(a, e, limits):
                    return "survived"
    return worst


def _in_memory(files: Files) -> PackageFiles:
    return PackageFiles("model.pte", files.pte, tuple(files.ptds.values()))


def _bits(value: torch.Tensor) -> torch.Tensor:
    return value.contiguous().reshape(-1).view(torch.uint8)


def _near(actual: torch.Tensor, expected: torch.Tensor, limits: Any) -> bool:
    """Return whether the values are within the limits, without validation's other rules."""
    error = compare(actual, expected)
    if error.mismatch or error.disagreeing:
        return False
    if not torch.allclose(
        actual.double(), expected.double(), limits.rtol, limits.atol, equal_nan=True
    ):
        return False
    return limits.min_sqnr is None or error.sqnr_db is None or error.sqnr_db >= limits.min_sqnr


def _wide(sample: Sample, method: str, seed: int) -> list[list[InputSet]]:
    """Return input sequences of several magnitudes, from other seeds than validation's."""
    program, examples = sample.programs[method], sample.examples.get(method, [])
    drawn = generate_inputs(program, 6, 1000 + seed, examples)
    scaled = [_times(inputs, factor) for inputs in drawn[:3] for factor in (0.0, -1.0, 0.05, 10.0)]
    sets = [*examples, *drawn, *scaled]
    return [sets[start : start + 4] for start in range(0, len(sets), 2)]


def _times(inputs: InputSet, factor: float) -> InputSet:
    def scaled(value: Any) -> Any:
        floating = torch.is_tensor(value) and value.is_floating_point()
        return value * factor if floating else value

    args = torch.utils._pytree.tree_map(scaled, inputs.args)
    return replace(inputs, args=args, kwargs=torch.utils._pytree.tree_map(scaled, inputs.kwargs))
