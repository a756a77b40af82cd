"""Backends from other distributions, by entry point.

A distribution names entries of the catalogue in the group `pte_pipeline.backends`; each entry point
is a `Backend`, or several of them. It is imported when the catalogue is, so it should import torch
no earlier than the built-in ones do: in the functions that build a part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import wraps
from importlib.metadata import EntryPoint
from typing import Any

from pipeline.backends.entry import Backend
from pipeline.moments import installed_entry_points

GROUP = "pte_pipeline.backends"


def find_plugins(known: Mapping[str, Backend]) -> tuple[dict[str, Backend], dict[str, str]]:
    """Find all plugins that are installed, in the order of their distributions' names. One that is
    wrong takes nothing from the others.

    Args:
        known: entries that are there, whose names are taken.

    Returns:
        The entries that plugins bring, and by plugin what is wrong with the others.
    """
    found: dict[str, Backend] = {}
    problems: dict[str, str] = {}
    points = {(p.dist.name if p.dist else "", p.name): p for p in installed_entry_points(GROUP)}
    for (distribution, name), point in sorted(points.items()):
        try:
            for backend in _entries(point):
                if backend.name in known or backend.name in found:
                    raise ValueError(f"brings backend '{backend.name}', which is there already")
                _check_function(backend, [*known.values(), *found.values()])
                found[backend.name] = _complete(backend, distribution)
        except Exception as error:  # whatever the plugin's code raises
            problems[f"{distribution}:{name}"] = f"{type(error).__name__}: {error}"
    return found, problems


def _entries(point: EntryPoint) -> Iterable[Backend]:
    given = point.load()
    entries = [given] if isinstance(given, Backend) else list(given)
    for entry in entries:
        if not isinstance(entry, Backend):
            raise TypeError(f"{point.value} is a {type(entry).__name__}, not a Backend")
    return entries


def _check_function(backend: Backend, others: Iterable[Backend]) -> None:
    """Raise ValueError for another preprocess function of a delegate that is known: packages that
    use the other entry would follow this plugin's function and not know it."""
    for other in others:
        theirs, ours = other.preprocessing.function, backend.preprocessing.function
        if other.backend_id == backend.backend_id and theirs != ours:
            raise ValueError(
                f"brings another preprocess function for {backend.backend_id} than '{other.name}' "
                f"has: {ours or 'none'}, and there {theirs or 'none'}"
            )


def _complete(backend: Backend, distribution: str) -> Backend:
    """Return the entry with its distribution among those that count for keys: by version, or by
    content where it is being worked on."""
    distributions = tuple(dict.fromkeys((*backend.host.distributions, distribution)))
    host = replace(backend.host, distributions=distributions)
    return replace(_guard(backend, f"plugin {distribution}"), host=host, plugin=distribution)


def _guard(backend: Backend, who: str) -> Backend:
    """Return an entry whose functions, and what they make, keep torch's defaults as they were; of
    its preprocess function the preprocess cache takes care."""
    lowering = replace(
        backend.lowering,
        make_partitioner=_guarded(
            backend.lowering.make_partitioner, ("partition", "ops_to_not_decompose"), who
        ),
        make_passes=_guarded(backend.lowering.make_passes, ("__call__",), who),
    )
    runs = ("init", "execute", "timings", "destroy")
    make_runtime = _guarded(backend.execution.make_runtime, runs, who)
    if (quantization := backend.quantization) is not None:
        annotates = ("transform_for_annotation", "annotate", "validate")
        quantization = replace(
            quantization,
            make_quantizer=_guarded(quantization.make_quantizer, annotates, who),
            apply_quantizer=_guarded(quantization.apply_quantizer, (), who),
        )
    execution = replace(backend.execution, make_runtime=make_runtime)
    return replace(backend, lowering=lowering, execution=execution, quantization=quantization)


def _guarded(make: Callable[..., Any] | None, methods: Iterable[str], who: str) -> Any:
    """Guard a function, and these methods of what it makes; None stays."""
    if make is None:
        return None

    @wraps(make)
    def guarded(*args: Any) -> Any:
        from pipeline.program.kept_state import keep_state, keep_state_in

        made = keep_state(make, who)(*args)
        for each in made if isinstance(made, list | tuple) else [made]:
            if methods and each is not None:
                keep_state_in(each, methods, who)
        return made

    return guarded
