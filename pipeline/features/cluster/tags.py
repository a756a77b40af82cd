"""Tags: names of the backends and quantizers that not every machine can lower for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipeline.plan.actions import Action


def find_tags(action: Action) -> frozenset[str]:
    """Return the tags of what an action runs."""
    configs = action.inputs.configs.values()
    if not configs:
        return frozenset()
    return frozenset(
        {name for config in configs for name in config.backend_names} & _hosts().keys()
    )


def offered_tags() -> list[str]:
    """Return the tags of all whose requirements this machine meets."""
    return sorted(name for name, host in _hosts().items() if not any(host.missing()))


def _hosts() -> Mapping[str, Any]:
    from pipeline.backends import BACKENDS, QUANTIZERS  # pydantic, which a no-op run does without

    hosts = {name: entry.host for table in (QUANTIZERS, BACKENDS) for name, entry in table.items()}
    return {name: host for name, host in hosts.items() if host.requirements}
