"""Which generator makes each generated part of a page."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from tools.reference.config import config_keys, options
from tools.reference.errors import errors, index, known_causes
from tools.reference.features import features
from tools.reference.gates import gates, limits, metrics
from tools.reference.json_output import json_output
from tools.reference.linking import linking
from tools.reference.settings import settings
from tools.reference.targets import targets
from tools.reference.verbs import verbs

DOCS = Path(__file__).parents[2] / "docs"
REFERENCE = DOCS / "reference"
# The generator of each part, keyed by page and part name.
PARTS: dict[tuple[Path, str], Callable[[], Iterator[str]]] = {
    (REFERENCE / "config.md", "keys"): config_keys,
    (REFERENCE / "options.md", "options"): options,
    (REFERENCE / "gates.md", "gates"): gates,
    (REFERENCE / "gates.md", "limits of metrics"): metrics,
    (REFERENCE / "gates.md", "limits"): limits,
    (REFERENCE / "settings.md", "settings"): settings,
    (REFERENCE / "verbs.md", "verbs"): verbs,
    (REFERENCE / "json.md", "commands"): json_output,
    (REFERENCE / "linking.md", "linking"): linking,
    (REFERENCE / "targets.md", "targets"): targets,
    (REFERENCE / "errors.md", "errors"): errors,
    (REFERENCE / "errors.md", "known causes"): known_causes,
    (DOCS / "guides" / "writing-a-feature.md", "features"): features,
    (DOCS / "troubleshooting.md", "index"): index,
}


def with_parts(page: Path, text: str) -> str:
    """Return the text of a page with its generated parts up to date.

    Raises:
        ValueError: a part has no markers in the text.
    """
    for (where, name), make in PARTS.items():
        if where != page:
            continue
        begin, end = f"<!-- made by tools.reference: {name} -->\n", f"<!-- end of {name} -->\n"
        head, found, rest = text.partition(begin)
        _, closed, tail = rest.partition(end)
        if not found or not closed:
            raise ValueError(f"{page.name}: no marks of {name}")
        text = head + begin + "\n" + "\n".join(make()).strip() + "\n\n" + end + tail
    return text
