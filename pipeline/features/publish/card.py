"""Model cards: Markdown documents about packages, made from their records alone.

Nothing in a card depends on when or where it is made, so the same build has the same card.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pipeline.features.publish.card_metrics import HEAD, list_metrics
from pipeline.features.publish.signatures import (
    describe_leaf,
    iter_inputs,
    iter_outputs,
)
from pipeline.report.formatting import NOTHING, decibel, error, milliseconds, percent
from pipeline.store.sizes import human_size

Json = Mapping[str, Any]
_NOTHING_SAID = "not stated"
_HERE = "this build's machine"
# Characters with a meaning in Markdown or HTML.
_SPECIAL = {ord(letter): f"\\{letter}" for letter in "\\`*_[]<>|#"}


def make_card(
    manifest: Json,
    report: Json,
    inside: Json | None,
    contract: Json | None,
    said: Mapping[str, str | None],
) -> str:
    """Return the model card of a package.

    Args:
        inside: the package's contents.json, or None if it has none.
        contract: the package's contract.json, or None if it has none.
        said: `licence`, `source_url` and `description` from its config, if given.
    """
    licence = said.get("licence")
    parts = [
        _front_matter(manifest, licence),
        f"# {_escape(manifest['package'])}",
        _escape(said.get("description") or ""),
        _describe_package(manifest, report, said),
        "## Files",
        _describe_files(manifest),
        "## Methods",
        *_describe_methods(manifest),
        "Sizes with the same name, such as `d0`, are equal in a call."
        if _has_names(manifest)
        else "",
        *_describe_constants(manifest),
        "## Where it was proven",
        _describe_verdicts(report),
        *_describe_runtimes(report),
        *_describe_performance(report, inside or {}),
        "## Accuracy",
        *_describe_accuracy(report),
        *_describe_metrics(report),
        *_describe_needs(contract),
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def _front_matter(manifest: Json, licence: str | None) -> str:
    """Return the YAML front matter that hubs read; JSON strings are valid YAML strings."""
    lines = ["---", "library_name: executorch"]
    if licence:
        lines.append(f"license: {json.dumps(licence)}")
    tags = ["executorch", *sorted(_find_backends(manifest))]
    return "\n".join([*lines, f"tags: {json.dumps(tags)}", "---"])


def _find_backends(manifest: Json) -> set[str]:
    backends: set[str] = set()
    for method in manifest["methods"].values():
        backends |= method["delegation"]["partitions"].keys()
    return backends


def _describe_package(manifest: Json, report: Json, said: Json) -> str:
    toolchain = manifest["toolchain"]
    versions = [
        f"{title} {toolchain[name]}"
        for name, title in (("executorch", "ExecuTorch"), ("torch", "torch"))
        if name in toolchain
    ]
    size = sum(file["size"] for file in manifest["files"].values())
    facts = {
        "Model": manifest["model"],
        "Target": manifest["target"] or "any",
        "Built by": ", ".join(versions),
        "Size": human_size(size),
        "Verdict": report["verdict"],
        "Licence": said.get("licence") or _NOTHING_SAID,
        "Source": said.get("source_url") or _NOTHING_SAID,
    }
    return "\n".join(f"- {name}: {_escape(value)}" for name, value in facts.items())


def _describe_files(manifest: Json) -> str:
    rows = [
        [f"`{name}`", human_size(file["size"]), f"`{file['digest']}`"]
        for name, file in sorted(manifest["files"].items())
    ]
    return _table(["file", "size", "BLAKE3"], rows)


def _describe_methods(manifest: Json) -> Iterator[str]:
    """Yield the inputs and outputs of each method, in the order in which they are passed."""
    for name, method in sorted(manifest["methods"].items()):
        yield f"### `{name}`"
        signature = method.get("signature")
        if not signature:
            yield "Its signature is not known."
            continue
        rows = list[Sequence[str]]()
        for role, leaves in (
            ("input", iter_inputs(signature)),
            ("output", iter_outputs(signature)),
        ):
            for place, leaf in enumerate(leaves):
                rows.append(
                    [f"{role} {place}", f"`{leaf['name']}`", *describe_leaf(leaf)]
                )
        yield _table(["", "name", "dtype", "sizes or value"], rows)
        changes = [
            list(iter_inputs(signature))[place] for place in signature["changes"]
        ]
        if changes:
            names = ", ".join(f"`{leaf['name']}`" for leaf in changes)
            yield f"It changes {names}, and returns the new values before its outputs."


def _has_names(manifest: Json) -> bool:
    """Return whether any input has a size with a name."""
    for method in manifest["methods"].values():
        for leaf in iter_inputs(method.get("signature") or {"args": [], "kwargs": []}):
            if any(isinstance(size, Mapping) for size in leaf.get("sizes", ())):
                return True
    return False


def _describe_constants(manifest: Json) -> Iterator[str]:
    """Yield the methods without inputs, such as one that returns an image normalization mean."""
    constants = manifest["constant_methods"]
    if not constants:
        return
    yield "### Constants"
    yield "Methods without inputs, which return parameters for preprocessing and calls."
    rows = [
        [f"`{name}`", f"`{json.dumps(value)}`"]
        for name, value in sorted(constants.items())
    ]
    yield _table(["method", "value"], rows)


def _describe_verdicts(report: Json) -> str:
    """Return the verdict on each method, per device."""
    devices: dict[str, None] = {}
    for method in report["methods"]:
        devices |= dict.fromkeys(method.get("devices") or {})
    rows = []
    for method in report["methods"]:
        facts_by_device = method.get("devices") or {}
        verdict_here = method["verdict"]
        for facts in facts_by_device.values():
            # A method that a device failed or didn't run has the verdict of that device.
            verdict_here = facts.get("verdict_here", verdict_here)
        row = [f"`{method['method']}`", verdict_here]
        for device in devices:
            facts = facts_by_device.get(device)
            row.append(facts["verdict"] if facts else NOTHING)
        rows.append(row)
    return _table(["method", _HERE, *map(_escape, devices)], rows)


def _describe_runtimes(report: Json) -> Iterator[str]:
    """Yield whether the package runs on the runtimes of other toolchains."""
    answers = report.get("runs_in", {})
    if answers:
        yield "\n".join(
            f"- ExecuTorch {_escape(runtime)}: {_escape(answer)}"
            for runtime, answer in answers.items()
        )


def _programs(report: Json) -> list[Json]:
    """Return the methods of a report that are not constants."""
    return [method for method in report["methods"] if method["kind"] != "constant"]


def _describe_performance(report: Json, inside: Json) -> Iterator[str]:
    """Yield the memory and latency of each method, with each figure next to its device."""
    rows = []
    for method in _programs(report):
        name = method["method"]
        arenas = inside.get("methods", {}).get(name, {}).get("planned_memory")
        planned = NOTHING
        if arenas is not None:
            planned = human_size(sum(arena["size"] for arena in arenas))
        latency = method.get("latency")
        if latency:
            processor = report.get("processor", _HERE)
            load, call = latency["load_ms"]["median"], latency["steady_ms"]["median"]
            rows.append([f"`{name}`", _escape(processor), planned, NOTHING, load, call])
        elif not method.get("devices"):
            rows.append([f"`{name}`", NOTHING, planned, NOTHING, None, None])
        for device, facts in (method.get("devices") or {}).items():
            peak = facts.get("memory", {}).get("peak")
            memory = NOTHING if peak is None else human_size(peak)
            times = facts.get("load_ms"), facts.get("run_ms")
            rows.append([f"`{name}`", _escape(device), planned, memory, *times])
    yield "## Memory and latency"
    yield (
        "Medians. Planned memory is what the runtime reserves for tensors; the peak is that of the "
        "whole process. Times on emulated processors (`qemu:`) don't predict those of real ones."
    )
    for row in rows:
        row[4:] = [
            NOTHING if value is None else milliseconds(value) for value in row[4:]
        ]
    head = ["method", "device", "planned memory", "peak memory", "load", "call"]
    yield _table(head, rows)


def _describe_accuracy(report: Json) -> Iterator[str]:
    """Yield the worst figures of each method against its source, and the cost of quantization."""
    rows = []
    notes = []
    for method in _programs(report):
        name = f"`{method['method']}`"
        figures = [error(method["max_abs"]), decibel(method["sqnr_db"])]
        rows.append(
            [
                name,
                *figures,
                percent(method["agreement"]),
                str(method.get("examples", 0)),
            ]
        )
        for noun, title in (("quantization", "quantized"), ("reference", "exported")):
            verdict = method.get(noun)
            if verdict:
                reason = verdict["reason"] or f"compared with {_list_compared(verdict)}"
                notes.append(
                    f"- {name}, {title}: {verdict['verdict']}; {_escape(reason)}"
                )
    yield (
        "The package compared with the program that it was made from: the worst of all calls on "
        "the model's examples, or on generated inputs if it has none."
    )
    head = [
        "method",
        "max. absolute error",
        "SQNR",
        "same greatest value",
        "calls on examples",
    ]
    yield _table(head, rows)
    yield "\n".join(notes)


def _describe_metrics(report: Json) -> Iterator[str]:
    """Yield the task scores of the package and its source."""
    rows = list_metrics(report)
    if rows:
        yield "## Task metrics"
        yield (
            "The scores of the package and its source on the same samples. A drop is the "
            "source's score minus the package's."
        )
        yield _table(HEAD, [[_escape(text) for text in row] for row in rows])


def _list_compared(verdict: Json) -> str:
    return ", ".join(verdict.get("compared", ())) or "its source"


def _describe_needs(contract: Json | None) -> Iterator[str]:
    """Yield what a runtime needs to run the package."""
    if contract is None:
        return
    yield "## What its runtime needs"
    backends = ", ".join(f"`{name}`" for name in contract["backends"]) or "none"
    kernels = ", ".join(f"`{name}`" for name in contract["kernels"]) or "none"
    lines = [f"- Backends: {backends}", f"- Kernels: {kernels}"]
    operators = ", ".join(f"`{name}`" for name in contract["operators"])
    if operators:
        lines.append(f"- Operators outside delegates: {operators}")
    if contract["data_files"]:
        files = ", ".join(f"`{name}`" for name in contract["data_files"])
        lines.append(f"- Loaded together with {files}")
    yield "\n".join(lines)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return ""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _escape(text: str) -> str:
    """Return the text on one line, escaped so that Markdown shows it literally."""
    return " ".join(text.split()).translate(_SPECIAL)
