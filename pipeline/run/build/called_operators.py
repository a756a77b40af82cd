"""The libraries of operators that a method calls in addition to ATen's, which an app must link."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.program.operator_libraries import find_library
from pipeline.program.runtime_bindings import import_bindings
from pipeline.store.digest import hash_json
from pipeline.store.toolchain import version_of

Json = Mapping[str, Any]
# The runtime has these without a library: portable kernels, and its built-in operators.
_OF_THE_RUNTIME = frozenset({"aten", "dim_order_ops", "executorch_prim", "et_copy"})


def describe_libraries(
    plan: Any, operator_inputs: Mapping[str, Json]
) -> list[dict[str, Any]]:
    """Describe the libraries of operators that an emitted method calls outside delegates.

    Args:
        plan: an `ExecutionPlan`.
        operator_inputs: the inputs, as in the key, of each library of the workspace. A pass's
            module counts as a library.

    Returns:
        One record per library: its `name`, or "" for operators that no library registered; the
        `digest` of its inputs or, for an installed library, its `version`; its `operators`; and as
        `kernels` those operators that ExecuTorch's runtime can run here.
    """
    called = {
        ".".join(filter(None, (operator.name, operator.overload)))
        for operator in plan.operators
    }
    foreign = sorted(
        name for name in called if name.partition("::")[0] not in _OF_THE_RUNTIME
    )
    kernels: set[str] = set()
    if foreign:  # this imports torch, which linking doesn't need otherwise
        # Operator libraries that lowering loaded may have registered kernels as well.
        kernels = set(import_bindings()._get_operator_names())
    by_library: dict[str, list[str]] = defaultdict(list)
    for operator in foreign:
        by_library[find_library(operator)].append(operator)
    return [
        {
            "name": name,
            **_identify(name, operator_inputs),
            "operators": operators,
            "kernels": [operator for operator in operators if operator in kernels],
        }
        for name, operators in sorted(by_library.items())
    ]


def _identify(name: str, operator_inputs: Mapping[str, Json]) -> dict[str, str]:
    if name in operator_inputs:
        return {"digest": hash_json(operator_inputs[name])}
    distribution = name.partition(".")[0]
    version = version_of(distribution) if distribution else None
    return {"version": f"{distribution} {version}"} if version else {}


def join_libraries(methods: Mapping[str, Sequence[Json]]) -> list[dict[str, Any]]:
    """Merge the library records of several methods by name; each record lists its `methods`."""
    joined: dict[str, dict[str, Any]] = {}
    for method, libraries in sorted(methods.items()):
        for library in libraries:
            record = joined.setdefault(library["name"], {**library, "methods": []})
            for part in ("operators", "kernels"):
                record[part] = sorted({*record[part], *library[part]})
            record["methods"].append(method)
    return [joined[name] for name in sorted(joined)]
