"""The gates, one per module, and the fields that they add to the config."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import Field

from pipeline.config.fields import NEEDS_BASELINE, NeedsFeature
from pipeline.features.gates.gate import Gate


@cache
def find_gates(holder: str = "") -> tuple[Gate, ...]:
    """Return the gates of a `package` or a `method`, or all, sorted by name."""
    names = sorted(path.stem for path in Path(__file__).parent.glob("[a-z]*.py"))
    gates = [import_module(f"{__name__}.{name}").GATE for name in names]
    return tuple(gate for gate in gates if not holder or holder in gate.holds_for)


def add_method_fields() -> dict[str, tuple[Any, Any]]:
    """Return the fields of gates that can be set for one method, too."""
    return {gate.name: _make_field(gate) for gate in find_gates("method")}


def add_package_fields() -> dict[str, tuple[Any, Any]]:
    """Return the fields of gates that apply only to a package."""
    gates = [gate for gate in find_gates("package") if "method" not in gate.holds_for]
    return {gate.name: _make_field(gate) for gate in gates}


def _make_field(gate: Gate) -> tuple[Any, Any]:
    values: Any = gate.values | None
    if gate.needs_feature:
        values = Annotated[values, NeedsFeature(gate.needs_feature)]
    if gate.needs_baseline:
        values = Annotated[values, NEEDS_BASELINE]
    return values, Field(
        default=None, description=gate.text, examples=[yaml.safe_load(gate.example)]
    )
