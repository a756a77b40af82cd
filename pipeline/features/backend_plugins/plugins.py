"""Finds backends of other distributions, by entry point.

A distribution declares catalogue entries in the group `pte_pipeline.backends`; each entry point is
a `Backend`, or several of them. It is imported with the catalogue, so it should import torch no
earlier than the built-in entries do: in the functions that build a part.

The catalogue imports this module while it is built, so import `pipeline.backends` before this
module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import wraps
from importlib.metadata import EntryPoint
from typing import Any

from pipeline.backends.entry import Backend
from pipeline.features.backend_plugins.vendors import ENTRIES
from pipeline.moments import installed_entry_points

GROUP = "pte_pipeline.backends"


def find_backends(
    built_in: Mapping[str, Backend],
) -> tuple[dict[str, Backend], dict[str, str]]:
    """Return the vendors' rows with the plugins' entries, and why plugins can't be used.

    An entry may replace a row. The reasons are keyed by plugin.

    Args:
        built_in: the entries of this package, whose names are taken.
    """
    backends, problems = find_plugins(built_in)
    return {row.name: row for row in ENTRIES} | backends, problems


def find_plugins(
    built_in: Mapping[str, Backend],
) -> tuple[dict[str, Backend], dict[str, str]]:
    """Find all installed plugins, in the order of their distributions' names.

    Args:
        built_in: the entries of this package, whose names are taken.

    Returns:
        The plugins' entries, and, by plugin, why its entries can't be used.
    """
    backends: dict[str, Backend] = {}
    problems: dict[str, str] = {}
    points = {
        (p.dist.name if p.dist else "", p.name): p
        for p in installed_entry_points(GROUP)
    }
    for (distribution, name), point in sorted(points.items()):
        try:
            for backend in _entries(point):
                if backend.name in built_in or backend.name in backends:
                    raise ValueError(
                        f"brings backend '{backend.name}', which already exists"
                    )
                _check_function(backend, [*built_in.values(), *backends.values()])
                backends[backend.name] = _complete(backend, distribution)
        except Exception as error:  # whatever the plugin's code raises
            problems[f"{distribution}:{name}"] = f"{type(error).__name__}: {error}"
    return backends, problems


def _entries(point: EntryPoint) -> Iterable[Backend]:
    loaded = point.load()
    entries = [loaded] if isinstance(loaded, Backend) else list(loaded)
    for entry in entries:
        if not isinstance(entry, Backend):
            raise TypeError(f"{point.value} is a {type(entry).__name__}, not a Backend")
    return entries


def _check_function(backend: Backend, registered: Iterable[Backend]) -> None:
    """Raise ValueError if an entry registers a second preprocess function for a delegate.

    Packages of the first entry would silently use this plugin's function.
    """
    function = backend.preprocessing.function
    for entry in registered:
        entry_function = entry.preprocessing.function
        if entry.backend_id == backend.backend_id and entry_function != function:
            raise ValueError(
                f"provides a different preprocess function for {backend.backend_id} than "
                f"'{entry.name}': {function or 'none'}, not {entry_function or 'none'}"
            )


def _complete(backend: Backend, distribution: str) -> Backend:
    """Return the entry with its distribution added to those in cache keys.

    A key has the distribution's version, or its content if it is an editable install.
    """
    distributions = tuple(dict.fromkeys((*backend.host.distributions, distribution)))
    host = replace(backend.host, distributions=distributions)
    return replace(
        _guard(backend, f"plugin {distribution}"), host=host, plugin=distribution
    )


def _guard(backend: Backend, who: str) -> Backend:
    """Return an entry whose functions, and the objects that they make, restore torch's defaults.

    The preprocess cache does this for the entry's preprocess function.
    """
    lowering = replace(
        backend.lowering,
        make_partitioner=_guarded(
            backend.lowering.make_partitioner,
            ("partition", "ops_to_not_decompose"),
            who,
        ),
        make_passes=_guarded(backend.lowering.make_passes, ("__call__",), who),
    )
    runs = ("init", "execute", "timings", "destroy")
    make_runtime = _guarded(backend.execution.make_runtime, runs, who)
    quantization = backend.quantization
    if quantization is not None:
        annotates = ("transform_for_annotation", "annotate", "validate")
        quantization = replace(
            quantization,
            make_quantizer=_guarded(quantization.make_quantizer, annotates, who),
            apply_quantizer=_guarded(quantization.apply_quantizer, (), who),
        )
    execution = replace(backend.execution, make_runtime=make_runtime)
    return replace(
        backend, lowering=lowering, execution=execution, quantization=quantization
    )


def _guarded(make: Callable[..., Any] | None, methods: Iterable[str], who: str) -> Any:
    """Make a factory and these methods of its products restore torch's defaults.

    None stays None.
    """
    if make is None:
        return None

    @wraps(make)
    def guarded(*args: Any) -> Any:
        # Imported here because it imports torch, which a no-op run doesn't need.
        from pipeline.program.kept_state import keep_state, keep_state_in

        product = keep_state(make, who)(*args)
        parts = product if isinstance(product, list | tuple) else [product]
        for part in parts:
            if methods and part is not None:
                keep_state_in(part, methods, who)
        return product

    return guarded
