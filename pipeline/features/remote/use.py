"""The line that a run ends with, of what it fetched from the remote and pushed there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipeline.store.sizes import human_size
from pipeline.store.visible import one_line

# What is said of a count, if anything was counted.
_TROUBLES = {
    "unsigned": "without a trusted signature, ignored",
    "corrupt": "corrupt, refused",
    "errors": "errors",
}


def describe_use(use: Mapping[str, Any]) -> str:
    """Describe the use of a remote in a line; "" where the remote was asked nothing, works, and
    believes signatures alone."""
    if not any(use.values()):
        return ""
    facts = []
    if use["believes_all"]:
        facts.append("trusted without signatures (remote_trust)")
    facts.append(f"{use['hits']} fetched ({human_size(use['bytes_fetched'])})")
    facts.append(f"{use['pushed']} pushed ({human_size(use['bytes_pushed'])})")
    facts.append(f"{use['misses']} not there")
    for name, words in _TROUBLES.items():
        if use[name]:
            facts.append(f"{use[name]} {words}")
    if use["problem"]:
        facts.append(one_line(use["problem"]))
    return f"remote: {'; '.join(facts)}"
