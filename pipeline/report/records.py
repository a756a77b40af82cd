"""The records that a build leaves: their readers, and the shape of `report.json`.

Renderers read nothing but `report.json`, so a page can be rendered again without measuring again.
Parts that not every package has, or that an older build did not write, may be missing; further keys
may be there. `python -m pte_pipeline.report.schema` prints these shapes as a JSON Schema.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal

# Python 3.11's own TypedDict does not tell pydantic all that it needs for a schema.
from typing_extensions import NotRequired, TypedDict  # noqa: UP035

from pipeline.moments import find_functions, load
from pipeline.report.method_records import Figure, MethodRecord, SkipRecord
from pipeline.report.package_records import (
    MANIFEST_OUTLINE,
    ContentsRecord,
)
from pipeline.report.verdicts import Verdict
from pipeline.store.compiled import (
    Delegation,
    LoweringWarning,
    NarrowedSize,
    OperatorLibrary,
)
from pipeline.store.files import CONTENTS, MANIFEST, REPORT, read_record
from pipeline.store.forms import Check, check_of
from pipeline.store.quantized import QuantizationFacts
from pipeline.store.workspace import Workspace

FORMAT = 2  # of report.json
# A higher SQNR is float32's own rounding, and differs from one processor to the next.
MOST_SQNR = 120.0  # dB


def read_manifest(workspace: Workspace, package: str) -> dict[str, Any] | None:
    """Read the manifest of a package in `build/`; None where there is none that can be read."""
    return read_fitting(workspace.package(package) / MANIFEST)


def read_fitting(path: Path) -> dict[str, Any] | None:
    """Read the record of a package that is in a file; None where there is none, or it has another
    form than the records of this name."""
    record = read_record(path)
    if fits_name(path.name, record):
        return record
    return None


def read_drops(workspace: Workspace, package: str) -> dict[str, Sequence[float]]:
    """Return the methods of which less is delegated than in the build before: the share then and
    now, as installing the package recorded it."""
    return dict(workspace.state(package).get("link", {}).get("drops", {}))


def fits_name(name: str, record: Any) -> bool:
    """Tell whether a value has the form of the records of this name."""
    return _check_of_name(name)(record)


@cache
def _check_of_name(name: str) -> Check:
    return check_of(find_form(name), open_fields=True)


def find_form(name: str) -> Any:
    """Return the form of the records of this name, one of ours or of a feature's; None where no
    records have this name."""
    if name in FORMS:
        return FORMS[name]
    outline = find_functions("outlines").get(name)
    return load(outline) if outline else None


def delegated_share(methods: Iterable[Mapping[str, Any]]) -> float | None:
    """Return the share of methods' nodes that do not run on portable kernels; None without nodes.

    Args:
        methods: delegation records.
    """
    nodes = inside = 0
    for counts in methods:
        kernels = counts.get(
            "kernels", {}
        ).values()  # backends' own, which count as delegated
        nodes += counts["nodes"]
        inside += counts["delegated_nodes"] + sum(
            sum(calls.values()) for calls in kernels
        )
    if nodes:
        return inside / nodes
    return None


def in_order(
    report: Mapping[str, Any], by_method: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return what a report has by method in the order of its methods."""
    order = {method["method"]: place for place, method in enumerate(report["methods"])}
    entries = (by_method or {}).items()
    return dict(
        sorted(entries, key=lambda entry: (order.get(entry[0], len(order)), entry[0]))
    )


def name_kernels(operators: Iterable[str]) -> str:
    """Return what the kernels of operators that no delegate took are called: portable ones are
    those of ATen, of dim orders and of sizes alone."""
    ours = ("aten.", "dim_order_ops.")
    if all(o.startswith(ours) or "." not in o for o in operators):
        return "portable kernels"
    return "kernels"


def is_unchecked(gate: Mapping[str, Any]) -> bool:
    """Return whether a gate holds only since nothing was there to hold it to."""
    return bool(gate["ok"] and gate["figure"] is None)


GateUnit = Literal["share", "bytes", "times", "dB", "calls", "cycles", "needs", "ms"]


GateExemption = Literal["not run", "no partitioners", "no baseline"]


class GateRecord(TypedDict):
    """A limit that the config sets on a package or on a method, and the figure it limits.

    `method` is None for one of the package. `figure` and `limit` are in `unit`; `figure` is None
    where it is not known; the limit of allow_portable_ops is 0, and its figure the number of calls
    that are not allowed; that of runs_on is 0, and its figure the number of needs that runtimes do
    not meet. `sentence` says what is wrong, or why it was not checked; else it is empty. `place` is
    its line in the config, `file:line`, or empty for one by default. `device` is the device of the
    figure, where the limit is of devices. `left_alone` says why it
    neither holds nor fails: the method was not run, has no partitioners on purpose, or there is no
    baseline yet.
    """

    gate: str
    method: str | None
    unit: NotRequired[GateUnit]
    figure: float | None
    limit: float
    ok: bool
    sentence: str
    place: NotRequired[str]
    device: NotRequired[str]
    left_alone: NotRequired[GateExemption]


class SuiteRecord(TypedDict):
    """A method in the bundled program: the origin of each case's inputs, in the order of their
    numbers; the tolerances for the runtime; the state for whose initial values the method is loaded
    anew for each case."""

    cases: list[str]
    rtol: float
    atol: float
    state: list[str]
    left_out: list[SkipRecord]


class BundleRecord(TypedDict):
    """The bundled program, where one was wanted and the package is its source."""

    file: str
    size: int
    digest: str
    methods: dict[str, SuiteRecord]


class CommonStateRecord(TypedDict):
    """The buffers that several methods use by one name and at least one changes, each with its
    methods; `shared` says whether they are one in the package, or each method has a copy."""

    shared: bool
    buffers: dict[str, list[str]]


class FamilyRecord(TypedDict):
    """The family of a package; `packages` has, by package and name, digest and size in bytes of the
    files of those that share weights, this package among them."""

    name: str
    base: str | None
    packages: dict[str, dict[str, tuple[str, int]]]


class ReportRecord(TypedDict):
    """The record of a validated package.

    `verdict` is the worst of its methods' lowerings and quantizations, its gates and its files;
    `ok` is false where it failed; `allow` are other verdicts that the config accepts;
    `failures` has a sentence for each failure, those of methods first, and `codes` the code of
    each, such as `PTE502`; `files` are digests and `sizes` bytes by name; `settings` is how it was
    validated; `places` says where the config sets a value, `file:line` by its path there
    (`methods.encode`, `validate.atol`); `sources` are digests of the files of the workspace whose
    lines pages quote, as they were exported from and as the config was read; `left_float` counts
    operators that a quantized method's control flow keeps in floating point; `quantization` has the
    facts of quantized methods; `portable` are the methods for which the config names no
    partitioner; `narrowed` has, by method, sizes whose range lowering narrowed, `warnings` those of
    its lowering, and `facts` those of features by name; `operators` are the libraries of operators
    beside ATen's that the methods call; `seconds` is each method's running time in the package over
    all calls; `only` names the methods that were asked for, where not all were; `processor` is what
    measured latencies; `runs_in` says by runtime, such as `1.5.1 (et15)`, whether the package runs
    there: "yes", or "no" and why; `output_shapes` has dtype and sizes of each output, by method and
    output; `profiles` has, by method, where the time of a call went on a device; `metrics` has a
    row for each limit of a metric.
    """

    package: str
    ok: bool
    verdict: Verdict
    allow: NotRequired[list[str]]
    failures: list[str]
    codes: NotRequired[list[str]]
    settings: dict[str, Any]
    methods: list[MethodRecord]
    format: NotRequired[Literal[2]]
    model: NotRequired[str]
    target: NotRequired[str]
    files: NotRequired[dict[str, str]]
    sizes: NotRequired[dict[str, int]]
    places: NotRequired[dict[str, str]]
    sources: NotRequired[dict[str, str]]
    delegation: NotRequired[dict[str, Delegation]]
    left_float: NotRequired[dict[str, int]]
    quantization: NotRequired[dict[str, QuantizationFacts]]
    portable: NotRequired[list[str]]
    narrowed: NotRequired[dict[str, list[NarrowedSize]]]
    warnings: NotRequired[dict[str, list[LoweringWarning]]]
    facts: NotRequired[dict[str, dict[str, Any]]]
    operators: NotRequired[list[OperatorLibrary]]
    contents: NotRequired[ContentsRecord | None]
    gates: NotRequired[list[GateRecord]]
    baseline: NotRequired[dict[str, Any] | None]
    output_shapes: NotRequired[dict[str, dict[str, str]]]
    metrics: NotRequired[list[dict[str, Any]]]
    bundle: NotRequired[BundleRecord]
    family: NotRequired[FamilyRecord]
    runs_in: NotRequired[dict[str, str]]
    profiles: NotRequired[dict[str, dict[str, Any]]]
    common_state: NotRequired[CommonStateRecord]
    only: NotRequired[list[str]]
    processor: NotRequired[str]
    worst: NotRequired[dict[str, Figure]]
    seconds: NotRequired[dict[str, float]]


FORMS: Mapping[str, Any] = {
    MANIFEST: MANIFEST_OUTLINE,
    CONTENTS: ContentsRecord,
    REPORT: ReportRecord,
}
