"""The last line of a run, on what it fetched from the remote and pushed there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipeline.store.sizes import human_size
from pipeline.store.visible import one_line

# Words for each count, used if it isn't zero.
_TROUBLES = {
    "unsigned": "without a trusted signature, ignored",
    "corrupt": "corrupt, refused",
    "errors": "errors",
}


def describe_use(use: Mapping[str, Any]) -> str:
    """Describe the use of a remote in one line, or return "".

    It is "" if nothing was requested from the remote, it had no problem, and only signed results
    are trusted.
    """
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
