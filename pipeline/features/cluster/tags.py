"""Tags: names of the backends and quantizers that only some machines can lower for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipeline.plan.actions import Action


def find_tags(action: Action) -> frozenset[str]:
    """Return the tags of the backends and quantizers that an action runs."""
    names: set[str] = set()
    for config in action.inputs.configs.values():
        names.update(config.backend_names)
    return frozenset(names & _find_hosts().keys()) if names else frozenset()


def offered_tags() -> list[str]:
    """Return the tags whose requirements this machine meets."""
    return sorted(
        name for name, host in _find_hosts().items() if not any(host.missing())
    )


def _find_hosts() -> Mapping[str, Any]:
    """Return the host requirements of each backend and quantizer that has any, by name."""
    # Imports pydantic, which a no-op run doesn't need.
    from pipeline.backends import BACKENDS, QUANTIZERS

    hosts = {name: quantizer.host for name, quantizer in QUANTIZERS.items()}
    hosts.update((name, backend.host) for name, backend in BACKENDS.items())
    return {name: host for name, host in hosts.items() if host.requirements}
