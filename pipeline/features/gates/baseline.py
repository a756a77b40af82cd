"""Reads and writes baselines: accepted figures of a package, in `baselines/<package>.yaml`.

A baseline is text for version control: small, sorted, and the same for the same package whoever
accepted it, except for latencies, which belong to the processor that it names. Gates check later
builds against it, and `doit diff` and reports compare them with it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from pipeline.config.compose import Document
from pipeline.config.parser import parse
from pipeline.config.yaml import Dumper, load_nodes
from pipeline.features.gates.baseline_fields import FIGURES
from pipeline.store.errors import ConfigErrors, Problem
from pipeline.store.files import inside, read_text_file

Json = Mapping[str, Any]
MOST_TENSORS = 10
# If the bytes are equal, figures this close are equal, though measured on two machines.
_NEAR_SQNR = 3.0  # dB
_NEAR_ABS = 2.0  # times
_COMMENT = """\
# The accepted figures of {package}. Gates such as `max_size_growth` compare later builds with
# them. `doit baseline {package}` writes the current figures here, and `doit diff {package}` shows
# the differences. Sizes are in bytes; only the largest tensors are listed.
"""


def parse_baseline(content: bytes, file: str) -> Json:
    """Return the figures of a baseline, with all fields.

    Raises ConfigErrors, with every mistake and its line.
    """
    root = load_nodes(content, file)
    if root is None:
        raise ConfigErrors([Problem(file, "", "is empty", "`doit baseline` writes it")])
    return parse(FIGURES, Document(file, root)).resolved()


class _Dumper(Dumper):
    """Writes each list and each tensor on one line, everything else in blocks."""

    def represent_sequence(
        self, tag: str, sequence: Any, flow_style: bool | None = None
    ) -> Any:
        return super().represent_sequence(tag, sequence, flow_style=True)

    def represent_mapping(
        self, tag: str, mapping: Any, flow_style: bool | None = None
    ) -> Any:
        # A tensor or a latency, whose values belong together.
        flat = bool({"dtype", "median"} & mapping.keys())
        return super().represent_mapping(tag, mapping, flow_style=flat)


def format_baseline(package: str, figures: Json) -> str:
    """Format a baseline. Equal figures give equal text, and unknown figures are left out."""
    content = _leave_out_unknown(figures)
    methods = figures["methods"].items()
    content["methods"] = {name: _leave_out_unknown(method) for name, method in methods}
    tensors = content.pop("tensors", {})
    largest = sorted(tensors, key=lambda name: (-tensors[name]["size"], name))[
        :MOST_TENSORS
    ]
    if largest:
        # By name: in the order of sizes, a tensor that outgrows another would move lines.
        content["tensors"] = {name: tensors[name] for name in sorted(largest)}
    # No line is wrapped, so that a changed figure changes one line.
    options: Any = {"sort_keys": False, "allow_unicode": True, "width": math.inf}
    return _COMMENT.format(package=package) + yaml.dump(
        content, None, _Dumper, **options
    )


def _leave_out_unknown(figures: Json) -> dict[str, Any]:
    """Return figures without unknown or empty ones."""
    return {name: value for name, value in figures.items() if value not in (None, {})}


def keep_accepted(now: Json, before: Json | None) -> Json:
    """Return the figures to write if a baseline exists already.

    For the same package, latencies stay as they were written, and so do numerics, which may come
    from another machine, unless the new ones differ substantially.
    """
    if before is None or before["digest"] != now["digest"]:
        return now
    methods = {
        name: _keep_numerics(method, before["methods"].get(name))
        for name, method in now["methods"].items()
    }
    if before["processor"] is not None:
        for name, method in methods.items():
            accepted = before["methods"].get(name)
            latency = accepted and accepted["latency"]
            methods[name] = {**method, "latency": latency}
    processor = before["processor"] or now["processor"]
    return {**now, "methods": methods, "processor": processor}


def _keep_numerics(now: Json, before: Json | None) -> Json:
    sqnrs = now["sqnr_db"]
    accepted_sqnrs = before["sqnr_db"] if before else None
    if (
        before is None
        or sqnrs is None
        or accepted_sqnrs is None
        or len(sqnrs) != len(accepted_sqnrs)
    ):
        return now
    for a, b in zip(sqnrs, accepted_sqnrs, strict=True):
        if a != b and (a is None or b is None or abs(a - b) > _NEAR_SQNR):
            return now
    ours = now["max_abs"]
    theirs = before["max_abs"]
    is_near = (
        ours is None
        or theirs is None
        or max(ours, theirs) <= _NEAR_ABS * min(ours, theirs)
    )
    error = theirs if is_near else ours
    return {**now, "sqnr_db": accepted_sqnrs, "max_abs": error}


def read_baseline(path: Path) -> Json | None:
    """Read the baseline of a package, or return None if there is none. Raises ConfigErrors."""
    file = f"{path.parent.name}/{path.name}"
    try:
        content = read_text_file(inside(path, (path.parent.parent,)))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigErrors(
            [Problem(file, "", f"cannot be read: {error.strerror}")]
        ) from error
    return parse_baseline(content, file)
