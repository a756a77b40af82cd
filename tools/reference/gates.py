"""The gates of `validate`, and its limits for metrics and outputs."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

from pipeline.config.validation import Limits
from pipeline.features.catalogue.value_kinds import describe_values
from pipeline.features.gates.kinds import find_gates
from pipeline.features.metrics.config import MetricLimits
from pipeline.features.metrics.planning import LIMITS
from pipeline.validate.limits import FIGURES
from pipeline.validate.metrics import OutputError
from tools.reference.config import keys
from tools.reference.markdown import row


def gates() -> Iterator[str]:
    """Yield the table of all gates."""
    yield "| gate | checked for each | unit | limit | example |"
    yield "|---|---|---|---|---|"
    for holder in ("package", "method"):
        for gate in find_gates(holder):
            compared = " Needs a baseline." if gate.needs_baseline else ""
            shown = f"`{gate.name}: {gate.example}`"
            yield row(f"`{gate.name}`", holder, gate.unit, f"{gate.text}{compared}", shown)


def limits() -> Iterator[str]:
    """Yield the table of the output limits."""
    schema = Limits.model_json_schema()
    figures = {limit: _definitions()[figure] for figure, (_, limit) in FIGURES.items()}
    largest = "at every position, |a - e| is at most `atol` + `rtol` * |e|"
    figures |= dict.fromkeys(("atol", "rtol"), largest)
    yield "| limit | values | meaning | figure |"
    yield "|---|---|---|---|"
    for name, part in schema["properties"].items():
        kind = describe_values(part, schema.get("$defs", {}))
        yield row(f"`{name}`", kind, keys()[f"validate.{name}"].meaning, figures[name])


def metrics() -> Iterator[str]:
    """Yield the table of the metric limits."""
    yield "| limit | values | meaning | example |"
    yield "|---|---|---|---|"
    schema = MetricLimits.model_json_schema()
    for name in LIMITS:
        part = schema["properties"][name]
        kind = describe_values(part, schema.get("$defs", {}))
        meaning = keys()[f"validate.metrics.<metric>.{name}"].meaning
        yield row(f"`{name}`", kind, meaning, f"`{name}: {part['examples'][0]}`")


def _definitions() -> dict[str, str]:
    """Return how each figure of an output is computed, keyed by name."""
    text = inspect.getdoc(OutputError) or ""
    found = re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", text.partition("Attributes:\n")[2], re.M)
    return {name: " ".join(words.split()).removesuffix(".") for name, words in found}
