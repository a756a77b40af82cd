"""Tags: names of the backends and quantizers that not every machine can lower for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pipeline.plan.actions import Action, CompileInputs, QuantizeInputs, ValidateInputs


def needed_tags(action: Action) -> frozenset[str]:
    """Return the tags of what an action runs."""
    return frozenset(set(_named(action.inputs)) & _hosts().keys())


def offered_tags() -> list[str]:
    """Return the tags of all whose requirements this machine meets."""
    return sorted(name for name, host in _hosts().items() if not any(host.missing()))


def _named(inputs: Any) -> Iterator[str]:
    match inputs:
        case QuantizeInputs(config=config):
            configs = [config]
        case CompileInputs(configs=by_method):
            configs = list(by_method.values())
        case ValidateInputs(config=package):
            configs = list(package.methods.values())
        case _:
            return
    for config in configs:
        yield from (spec.name for spec in config.partitioners)
        if config.quantize is not None:
            yield config.quantize.quantizer


def _hosts() -> Mapping[str, Any]:
    from pipeline.backends import BACKENDS, QUANTIZERS  # pydantic, which a no-op run does without

    every = {name: each.host for table in (QUANTIZERS, BACKENDS) for name, each in table.items()}
    return {name: host for name, host in every.items() if host.requirements}
