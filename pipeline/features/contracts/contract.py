"""The runtime contract of a package: what a runtime needs to run it.

Everything is read from the package's files, except for the names of libraries, which come from the
table of `linking.py`. `format_selection` writes the input of ExecuTorch's selective build.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.backends import BACKENDS
from pipeline.compile.inspect.package_file import open_file
from pipeline.features.contracts.kernel_calls import (
    KernelCall,
    alignment_of,
    read_kernel_calls,
    read_memory_alignment,
    read_schema,
)
from pipeline.features.contracts.linking import (
    backend_links,
    describe_linked,
    find_kernels,
    kernel_libraries,
)
from pipeline.program.flatbuffer import CorruptError
from pipeline.program.pte import FileLayout, PlanFacts
from pipeline.store.errors import PipelineError

Json = Mapping[str, Any]
OWN = "own"  # kernels in none of ExecuTorch's libraries


def describe_contract(
    package: str,
    files: Mapping[str, Path],
    executorch: str,
    libraries: Sequence[Json] = (),
) -> dict[str, Any]:
    """Describe what a package requires of a runtime (`contracts.outline.CONTRACT`).

    The package's files are one `.pte` and any number of `.ptd`.

    Args:
        executorch: the version that made it.
        libraries: the libraries of operators outside ATen, in the manifest's form.

    Raises PipelineError if a `.pte` is damaged.
    """
    (name,) = (item for item in files if item.endswith(".pte"))
    file = open_file(name, files[name])
    layout = file.layout
    data = file.data[: layout.program.end]
    try:
        identifier, version = read_schema(data)
        calls = read_kernel_calls(data)
        memory_alignment = read_memory_alignment(data)
    except CorruptError as error:
        raise PipelineError(f"{name}: is corrupt: {error}") from None
    methods = {
        plan.name: _describe_method(plan, calls[plan.name]) for plan in layout.plans
    }
    library_names = {
        operator: item["name"] for item in libraries for operator in item["operators"]
    }
    operators = {
        item: library_names.get(item, "")
        for plan in layout.plans
        for item in plan.operators
    }
    described = _describe_operators(operators, methods)
    return {
        "format": 1,
        "packages": [package],
        "executorch": [executorch],
        "schemas": [{"identifier": identifier, "version": version}],
        "alignment": {**_alignment(layout), "planned_memory": memory_alignment},
        "data_files": sorted(item for item in files if item.endswith(".ptd")),
        "operators": described,
        "kernels": _describe_kernels(described),
        "backends": _describe_backends(methods),
        "methods": methods,
    }


def join_contracts(contracts: Sequence[Any]) -> dict[str, Any]:
    """Return the joint contract of packages, for a runtime that runs all of them."""
    libraries = {
        operator: facts["library"] if facts["kernels"] == OWN else ""
        for contract in contracts
        for operator, facts in contract["operators"].items()
    }
    methods = {
        f"{contract['packages'][0]}/{name}": method
        for contract in contracts
        for name, method in contract["methods"].items()
    }
    described = _describe_operators(libraries, methods)
    schemas = {
        (s["identifier"], s["version"])
        for contract in contracts
        for s in contract["schemas"]
    }
    alignment: Any = {
        part: min((n for e in contracts if (n := e["alignment"][part])), default=None)
        for part in ("segments", "constants", "payloads", "planned_memory")
    }
    return {
        "format": 1,
        "packages": sorted(
            {name for contract in contracts for name in contract["packages"]}
        ),
        "executorch": sorted(
            {name for contract in contracts for name in contract["executorch"]}
        ),
        "schemas": [
            {"identifier": name, "version": version}
            for name, version in sorted(schemas)
        ],
        "alignment": alignment,
        "data_files": sorted(
            {name for contract in contracts for name in contract["data_files"]}
        ),
        "operators": described,
        "kernels": _describe_kernels(described),
        "backends": _describe_backends(methods),
        "methods": methods,
    }


def format_selection(contract: Json) -> bytes:
    """Return the operators of a contract as a `selected_operators.yaml`.

    It has the form that codegen/tools/gen_oplist.py writes; equal contracts have the same bytes.
    """
    import yaml  # not needed by the rest of a link

    operators = {}
    for operator in contract["operators"]:
        operators[operator] = {
            "is_root_operator": True,
            "is_used_for_training": True,
            "include_all_overloads": False,
            "debug_info": list(contract["packages"]),
        }
    selection = {
        "operators": operators,
        "custom_classes": [],
        "build_features": [],
        "include_all_non_op_selectives": False,
        "include_all_operators": False,
        "kernel_metadata": {},
        "et_kernel_metadata": {
            name: list(facts["keys"])
            for name, facts in contract["operators"].items()
            if facts["keys"]
        },
    }
    text: str = yaml.safe_dump(selection, default_flow_style=False)
    return text.encode()


def _alignment(layout: FileLayout) -> dict[str, int | None]:
    payloads = (span for plan in layout.plans for _, span in plan.delegates if span)
    return {
        "segments": alignment_of(span.offset for span in layout.segments),
        "constants": alignment_of(
            span.offset for span in layout.constants if span.size
        ),
        "payloads": alignment_of(span.offset for span in payloads),
    }


def _describe_method(plan: PlanFacts, calls: Iterable[KernelCall]) -> dict[str, Any]:
    return {
        "kernels": list(_group(calls)),
        "backends": sorted({backend for backend, _ in plan.delegates}),
        "planned_memory": [
            {"arena": number, "size": size}
            for number, size in enumerate(plan.arenas, 1)
        ],
    }


def _group(calls: Iterable[KernelCall]) -> Iterator[Json]:
    """Group calls of the same operator with the same tensor forms, sorted by operator and key."""
    groups: dict[tuple[str, str, tuple[str, ...]], list[KernelCall]] = defaultdict(list)
    for call in calls:
        dtypes = tuple(dtype or "" for dtype in call.dtypes)
        groups[call.operator, call.key, dtypes].append(call)
    for (operator, key, dtypes), group in sorted(groups.items()):
        yield {
            "operator": operator,
            "arguments": [argument or None for argument in dtypes],
            "key": key,
            "instructions": [call.instruction for call in group],
        }


def _describe_operators(
    libraries: Mapping[str, str], methods: Mapping[str, Json]
) -> dict[str, Json]:
    """Describe the operators of methods.

    Args:
        libraries: by operator, the library that registers it, if that isn't ExecuTorch's.
    """
    calls: dict[str, list[Json]] = {operator: [] for operator in libraries}
    for method in methods.values():
        for kernel in method["kernels"]:
            calls.setdefault(kernel["operator"], []).append(kernel)
    return {
        name: _describe_operator(name, libraries.get(name, ""), operator_calls)
        for name, operator_calls in sorted(calls.items())
    }


def _describe_kernels(
    operators: Mapping[str, Json],
) -> dict[str, dict[str, str]]:
    used = {entry["kernels"] for entry in operators.values()}
    return {
        name: describe_linked(name, entry.option, entry.library)
        for name, entry in kernel_libraries().items()
        if name in used
    }


def _describe_backends(
    methods: Mapping[str, Json],
) -> dict[str, dict[str, str]]:
    ids = {
        backend_id for method in methods.values() for backend_id in method["backends"]
    }
    return {backend_id: _describe_backend(backend_id) for backend_id in sorted(ids)}


def _describe_operator(
    operator: str, library: str, calls: Sequence[Json]
) -> dict[str, Any]:
    kernels = find_kernels(operator)
    dtypes = {
        dtype for call in calls for dtype in call["arguments"] if dtype is not None
    }
    return {
        "kernels": kernels.name if kernels else OWN,
        "library": kernels.library if kernels else library,
        "dtypes": sorted(dtypes),
        "keys": sorted({call["key"] for call in calls}),
    }


def _describe_backend(backend_id: str) -> dict[str, str]:
    """Describe the library to link for the delegates of an id, which several backends may share.

    A plugin's backend brings its library.
    """
    names = [name for name, entry in BACKENDS.items() if entry.backend_id == backend_id]
    links = backend_links()
    first = next(iter(names), "")
    for name in names:
        if name in links:
            return {**links[name], "name": first}
    return describe_linked(first)
