"""The figures of a build that later builds are compared with: sizes, delegation, memory, numerics.

They are read from JSON records only: the manifest, contents.json and the report of a validation.
Times are left out, and numerics are rounded, so that the same bytes have the same figures on two
machines; latencies, which have not, name the processor that they are of.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from pipeline.backends.options import Options
from pipeline.config.fields import DIGEST_PATTERN
from pipeline.report.formatting import size_range
from pipeline.report.records import MOST_SQNR, fits_name, read_fitting
from pipeline.store.digest import hash_json
from pipeline.store.errors import listed
from pipeline.store.files import CONTENTS, MANIFEST, REPORT, read_record

Json = Mapping[str, Any]
_MOST = 2  # modules, and reasons, of the calls of one operator that a sentence has

Count = Annotated[int, Field(ge=0)]
Finite = Annotated[float, Field(allow_inf_nan=False)]


class TensorFigures(Options):
    """A stored tensor; `size` in bytes."""

    dtype: str
    shape: list[int]
    size: Count


class LatencyFigures(Options):
    """Further calls of a method: the median in milliseconds with its quartiles, and `ratio`, that
    of the medians of the package and of its source in eager mode."""

    median: Finite
    low: Finite
    high: Finite
    ratio: Annotated[float, Field(gt=0, allow_inf_nan=False)]


class MethodFigures(Options):
    """The figures of a method; one that is not known is None.

    Attributes:
        delegated_nodes: those that run on delegates or on a backend's own kernels.
        left: calls left to portable kernels, by operator.
        planned_memory: bytes, over all arenas.
        delegated: bytes of payloads and weights of delegates.
        outputs: dtype and sizes of each output, by its name.
        sqnr_db: the worst of each output, at most `MOST_SQNR`; None where it is undefined.
        max_abs: left out where all outputs are as near as float32 goes.
    """

    nodes: Count
    delegated_nodes: Count
    operators: Count
    delegated_operators: Count
    partitions: dict[str, Count] = Field(default={})
    left: dict[str, Count] = Field(default={})
    planned_memory: Count | None = None
    constants: Count | None = None
    delegated: Count | None = None
    outputs: dict[str, str] = Field(default={})
    sqnr_db: list[Finite | None] | None = None
    max_abs: Finite | None = None
    latency: LatencyFigures | None = None

    def share(self, noun: str = "nodes") -> float:
        """Return the share of the nodes, or the operators, that run on delegates."""
        whole: int = getattr(self, noun)
        if whole:
            return getattr(self, f"delegated_{noun}") / whole
        return 1.0


class Figures(Options):
    """The figures of a package: digest and bytes of its files, `segments` in bytes by kind;
    `processor` is what its latencies are of; `files` are digests by name, where growth is measured
    on devices."""

    digest: Annotated[str, Field(pattern=DIGEST_PATTERN)]
    files: dict[str, Annotated[str, Field(pattern=DIGEST_PATTERN)]] = Field(default={})
    size: Annotated[int, Field(ge=1)]
    segments: dict[str, Count] = Field(default={})
    processor: str | None = None
    tensors: dict[str, TensorFigures] = Field(default={})
    methods: dict[str, MethodFigures]


@dataclass(frozen=True)
class Build:
    """A build, in `build/` or elsewhere; `manifest` is None for one of which only a baseline is
    left, which names only the largest tensors."""

    figures: Figures
    manifest: Json | None = None


def read_build(manifest: Path) -> Build | None:
    """Read the build of a manifest and the records next to it; None if it can't be read."""
    record = read_record(manifest)  # which may have another name
    if record is None or not fits_name(MANIFEST, record):
        return None
    records = (read_fitting(manifest.with_name(name)) for name in (CONTENTS, REPORT))
    return make_build(record, *records)


def make_build(manifest: Json, contents: Json | None, report: Json | None) -> Build:
    """Make a build of its records; the report counts only if it is of the manifest's files."""
    files = {name: file["digest"] for name, file in manifest["files"].items()}
    validation = None
    if report is not None and report.get("files") == files:
        validation = report
    return Build(make_figures(manifest, contents, validation), manifest)


def make_figures(
    manifest: Json, contents: Json | None = None, validation: Json | None = None
) -> Figures:
    """Read the figures of a build from its records; a figure in none of them is None, or empty."""
    files = {name: file["digest"] for name, file in manifest["files"].items()}
    inside = (contents or {}).get("methods", {})
    proved = {
        method_record["method"]: method_record
        for method_record in (validation or {}).get("methods", ())
    }
    processor = (validation or {}).get("processor")
    return Figures.model_construct(
        digest=hash_json(files),
        size=sum(file["size"] for file in manifest["files"].values()),
        segments=_segments(manifest, contents),
        processor=processor
        if any(method_record.get("latency") for method_record in proved.values())
        else None,
        tensors=dict(_tensors((contents or {}).get("tensors", ()))),
        methods={
            name: _method(facts, inside.get(name, {}), proved.get(name, {}))
            for name, facts in sorted(manifest["methods"].items())
        },
    )


def _segments(manifest: Json, contents: Json | None) -> dict[str, int]:
    """Sum up segments by kind. Without contents.json those are the blobs of the objects, each once,
    as it is linked; the rest of the files is called program."""
    sizes: Counter[str] = Counter()
    if contents:
        for segment in contents["segments"]:
            sizes[segment["kind"]] += segment["size"]
    else:
        blobs: dict[tuple[str, str], int] = {}
        for unit in manifest.get("objects", {}).values():
            for kind, blob in _iter_blobs(unit["parts"]):
                blobs[kind, blob["digest"]] = blob["size"]
        for (kind, _), size in blobs.items():
            sizes[kind] += size
        whole = sum(file["size"] for file in manifest["files"].values())
        # What no object accounts for: the flatbuffer, its alignment and padding.
        sizes["program"] += max(0, whole - sum(blobs.values()))
    return dict(sorted((+sizes).items()))  # those above zero


def _iter_blobs(parts: Json) -> Iterator[tuple[str, Json]]:
    """Yield the blobs of an object, each with the kind of the segment that it becomes."""
    for blob in (*parts["constants"], *parts["external_constants"]):
        yield "constants", blob
    for blob in parts["delegates"]:
        yield "delegate", blob
    for entries in (parts["named"], *parts["named_external"].values()):
        for entry in entries:
            yield "named_data", entry["blob"]


def _tensors(tensors: Sequence[Json]) -> Iterator[tuple[str, TensorFigures]]:
    """Yield tensors by name; one whose name is another's too, or that has none, gets a number."""
    occurrences: Counter[str] = Counter()
    for tensor in tensors:
        name = tensor["name"] or "(unnamed)"
        occurrences[name] += 1
        key = name if occurrences[name] == 1 else f"{name} #{occurrences[name]}"
        yield (
            key,
            TensorFigures(
                **{name: tensor[name] for name in TensorFigures.model_fields}
            ),
        )


def _method(facts: Json, inside: Json, proved: Json) -> MethodFigures:
    delegation = facts["delegation"]
    kernels = delegation.get("kernels", {})
    kernel_calls: Counter[str] = Counter()
    for counts in kernels.values():
        for name, count in counts.items():
            kernel_calls[name] = count
    arenas = inside.get("planned_memory")
    sqnr = None
    if proved.get("kind") == "program":
        sqnr = _sqnr(proved.get("runs", ()))
    measured = any(
        output_sqnr is not None and output_sqnr < MOST_SQNR
        for output_sqnr in sqnr or ()
    )
    error = float(proved.get("max_abs", math.inf)) if measured else math.inf
    # Unchecked, since the SQNR of a package that fails may be infinite.
    return MethodFigures.model_construct(
        nodes=delegation["nodes"],
        delegated_nodes=delegation["delegated_nodes"] + kernel_calls.total(),
        operators=delegation["operators"],
        delegated_operators=delegation["delegated_operators"] + len(kernel_calls),
        partitions=dict(sorted(delegation["partitions"].items())),
        left=dict(sorted(delegation["undelegated"].items())),
        planned_memory=None
        if arenas is None
        else sum(arena["size"] for arena in arenas),
        constants=inside.get("constants"),
        delegated=inside.get("delegated"),
        outputs=output_shapes(facts.get("signature", {})),
        sqnr_db=sqnr,
        max_abs=None if math.isinf(error) else float(f"{error:.2g}"),
        latency=_latency(proved.get("latency")),
    )


def _latency(measured: Json | None) -> LatencyFigures | None:
    if not measured:
        return None
    steady = {name: measured["steady_ms"][name] for name in ("median", "low", "high")}
    return LatencyFigures(**steady, ratio=measured["ratio"])


def _sqnr(runs: Sequence[Json]) -> list[float | None] | None:
    """Return the worst of each output on the examples; without any, on random inputs.

    Noise is beyond the ranges that a quantizer observed: its figures would hide a fall on examples.
    """
    usual = [run for run in runs if not run.get("case")] or runs
    usual = [run for run in usual if not run.get("generated")] or usual
    figures_by_run = []
    for run in usual:
        figures_by_run.append([output["sqnr_db"] for output in run["outputs"]])
    worst: list[float | None] = []
    for place_figures in zip_longest(*figures_by_run):
        figures = [
            round(min(float(figure), MOST_SQNR), 1)  # infinities are strings
            for figure in place_figures
            if figure is not None
        ]
        worst.append(min(figures, default=None))
    return worst or None


def describe_left(delegation: Json, operator: str) -> str:
    """Describe why calls of an operator are left to portable kernels: their modules, and reasons;
    empty where the manifest knows neither."""
    calls = [
        call for call in delegation.get("left", ()) if call["operator"] == operator
    ]
    modules = dict.fromkeys(call["module"] for call in calls if call["module"])
    reasons = dict.fromkeys(call["reason"] for call in calls if call["reason"])
    words = []
    if modules:
        words.append(f"in {listed(modules, _MOST)}")
    if reasons:
        words.append(listed(reasons, _MOST))
    return f" ({': '.join(words)})" if words else ""


def output_names(signature: Json, number: int) -> list[str]:
    """Return the names of a method's outputs; their places where the signature names not each."""
    names = [leaf["name"] for leaf in _leaves(signature.get("outputs"))]
    if len(names) == number:
        return names
    return [f"output[{place}]" for place in range(number)]


def output_shapes(signature: Json) -> dict[str, str]:
    """Return dtype and sizes of each tensor that a method gives, by the name of the output."""
    shapes: dict[str, str] = {}
    for leaf in _leaves(signature.get("outputs")):
        if "sizes" in leaf:
            sizes = ", ".join(map(_describe_size, leaf["sizes"]))
            shapes[leaf["name"]] = f"{leaf.get('dtype', '')} [{sizes}]".strip()
    return shapes


def _describe_size(size: Any) -> str:
    if isinstance(size, Mapping):
        return size_range((size.get("min") or 0, size.get("max")))
    return str(size)


def _leaves(tree: Any) -> Iterator[Json]:
    """Yield the leaves of a signature's tree: lists that begin with their kind."""
    if isinstance(tree, Mapping):
        yield tree
    elif isinstance(tree, list):
        for child in tree:
            yield from _leaves(child)
