"""`to_backend_multiple`: lowers the methods of a model, each with its own partitioners."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from multiprocessing import get_start_method
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

import torch
from executorch.exir.backend.partitioner import Partitioner
from torch.export import ExportedProgram

from pipeline.compile.delegate import delegate_methods, delegate_unit, make_units
from pipeline.compile.module_filter import FilteredPartitioner, check_modules
from pipeline.compile.shared_constants import retry_with_separate_constants
from pipeline.store.errors import PipelineError, did_you_mean
from pipeline.store.store import Store

Partitioners: TypeAlias = Partitioner | Sequence[Partitioner]
Modules: TypeAlias = Sequence[str]
_Programs: TypeAlias = Mapping[str, ExportedProgram]
_ByMethod: TypeAlias = Mapping[str, tuple[Partitioner, ...]]


def to_backend_multiple(
    method_to_edge_program: Mapping[str, ExportedProgram],
    method_to_partitioners: Partitioner | Mapping[str, Partitioners],
    *,
    modules_to_lower: Modules | Mapping[str, Modules] | None = None,
    n_jobs: int = 1,
    store: Store | None = None,
) -> dict[str, ExportedProgram]:
    """Lower the methods of a model, each to the delegates that its partitioners choose.

    Keeps the contract of ExecuTorch's function of this name (exir/backend/backend_api.py before
    `MethodProgramsPartitionerSpec`): a method that the mapping lacks, or maps to an empty sequence,
    passes through untouched; control-flow sub-graphs are lowered too; parameters and buffers that a
    delegate consumed leave the program. Partitioners in a sequence are tried in order. Methods
    whose backend sees all methods at once (`preprocess_multimethod`) are lowered together.

    A lowered program can't be passed between processes, and torch.export, which XNNPACK's passes
    use, is not thread-safe. So with `n_jobs` the methods are first lowered in forked processes of
    joblib, which fill the store (or a temporary one); lowering them in this process then finds
    every partition preprocessed. If multiprocessing does not fork, as on macOS, methods are lowered
    in this process one after another.

    Args:
        method_to_edge_program: programs in edge dialect, by method name. Not modified.
        method_to_partitioners: one partitioner for all methods, or a mapping of method names to
            partitioners. A partitioner's compile specs apply to its methods.
        modules_to_lower: qualified names of sub-modules, for all methods or by method; nothing
            outside them is delegated. `shared@1` is the second call of a module that is called
            several times, `shared@*` all of its calls.
        n_jobs: the number of processes that preprocess at a time.
        store: where results of preprocessing are looked up and kept.

    Returns:
        The lowered programs, in the order of `method_to_edge_program`.

    Raises:
        TypeError: a partitioner is not a `Partitioner`.
        KeyError: a partitioner is given for a method that doesn't exist.
        PipelineError: `modules_to_lower` names an unknown module, or an ambiguous call.
        AssertionError: a partitioner changed the graph.
    """
    programs = method_to_edge_program
    partitioners = _group_by_method(programs, method_to_partitioners)
    if modules_to_lower is None:
        return _lower_by_unit(programs, partitioners, n_jobs, store)
    filtered = filter_partitioners(programs, partitioners, modules_to_lower)

    def attempt(separated: _Programs) -> dict[str, ExportedProgram]:
        return _lower_by_unit({**programs, **separated}, filtered, n_jobs, store)

    return retry_with_separate_constants(
        {name: programs[name] for name in filtered}, attempt
    )


def filter_partitioners(
    programs: _Programs,
    partitioners: _ByMethod,
    modules: Modules | Mapping[str, Modules],
) -> dict[str, tuple[Partitioner, ...]]:
    """Limit partitioners to sub-modules, as `to_backend_multiple` does. Raises the same errors."""
    if isinstance(modules, Mapping):
        refuse_unknown_methods(modules, programs, "modules_to_lower")
    if isinstance(modules, Mapping):
        modules_by_method = dict(modules)
    else:
        modules_by_method = dict.fromkeys(partitioners, modules)
    for name, module_names in modules_by_method.items():
        names = isinstance(module_names, Sequence) and not isinstance(
            module_names, str | bytes
        )
        if not names or not all(
            isinstance(module_name, str) for module_name in module_names
        ):
            raise TypeError(
                f"modules_to_lower: must be a sequence of names, not {module_names!r}"
            )
        if not module_names:
            raise PipelineError(
                f"{f'{name}: ' if name else ''}modules_to_lower names nothing; leave it out to "
                "lower everything, and pass no partitioner to lower nothing"
            )
    filtered = {
        name: tuple(
            FilteredPartitioner(p, (modules_by_method.get(name),)) for p in module_names
        )
        if name in modules_by_method
        else module_names
        for name, module_names in partitioners.items()
    }
    check_modules(programs, filtered)
    return filtered


def refuse_unknown_methods(
    names: Iterable[str], methods: Mapping[str, Any], subject: str
) -> None:
    """Raise KeyError if a name is not among the methods; `subject` says what was given for it."""
    unknown = []
    for n in names:
        if n not in methods:
            unknown.append(f"no method {n}; {did_you_mean(n, methods)}")
    if unknown:
        raise KeyError(f"{subject}: {', '.join(unknown)}")


def _group_by_method(
    programs: _Programs, partitioners: Partitioner | Mapping[str, Partitioners]
) -> _ByMethod:
    if isinstance(partitioners, Partitioner):
        return dict.fromkeys(programs, (partitioners,))
    if not isinstance(partitioners, Mapping):
        raise TypeError(
            "method_to_partitioners must be a Partitioner or a mapping of method names to "
            f"partitioners, not {type(partitioners).__name__}"
        )
    refuse_unknown_methods(partitioners, programs, "partitioners")
    by_method = {
        name: (value,) if isinstance(value, Partitioner) else value
        for name, value in partitioners.items()
    }
    for name, value in by_method.items():
        if not isinstance(value, Sequence) or not all(
            isinstance(p, Partitioner) for p in value
        ):
            raise TypeError(
                f"{name}: must be a Partitioner or a sequence of them, not {value!r}"
            )
    return {name: tuple(by_method[name]) for name in programs if by_method.get(name)}


def _lower_by_unit(
    programs: _Programs, partitioners: _ByMethod, n_jobs: int, store: Store | None
) -> dict[str, ExportedProgram]:
    units = make_units(partitioners)
    with ExitStack() as stack:
        if n_jobs > 1 and len(units) > 1 and get_start_method() == "fork":
            store = store or Store(Path(stack.enter_context(TemporaryDirectory())))
            _lower_ahead(programs, partitioners, units, n_jobs, store)
        return delegate_methods(programs, partitioners, store)


_inherited: tuple[
    Any, ...
] = ()  # read by forked processes; edge programs can't be pickled


def _lower_ahead(
    programs: _Programs,
    partitioners: _ByMethod,
    units: Sequence[tuple[str, ...]],
    n_jobs: int,
    store: Store,
) -> None:
    from joblib import Parallel, delayed  # workers don't need it

    global _inherited
    # A forked process ends without cleaning up, which coremltools' packages would need.
    with TemporaryDirectory(prefix="pte-pipeline-lower-") as scratch:
        _inherited = (programs, partitioners, units, store, scratch)
        try:
            Parallel(
                n_jobs=min(n_jobs, len(units)), backend="multiprocessing", batch_size=1
            )(delayed(_lower_inherited)(number) for number in range(len(units)))
        finally:
            _inherited = ()


def _lower_inherited(number: int) -> None:
    """Fill the store, in a forked process. An error here occurs again in the parent process."""
    programs, partitioners, units, store, scratch = _inherited
    os.environ["TMPDIR"] = tempfile.tempdir = scratch
    torch.set_num_threads(1)  # OpenMP's threads do not survive a fork
    with suppress(Exception):
        delegate_unit(programs, partitioners, units[number], store)
