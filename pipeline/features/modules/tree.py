"""The modules of a method as a tree: where their operators run, their bytes, their errors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pipeline.features.modules.names import FOLDED, KERNELS
from pipeline.report.elements import Json

Tree = dict[str, Any]


def make_tree(
    method: Json, tensors: Iterable[Json], times: Mapping[str, float], most_rows: int
) -> Tree:
    """Return the root module of a method, with the modules below it in `children`.

    The `path` of a module is its qualified name, and its `name` is the part of the path below its
    parent's. `runners` counts calls by what runs them, `size` is the bytes of tensors, and `time`
    is in milliseconds; all three include the modules below. If a failure was traced to an operator
    in the module, `error` is that operator's error, else None. `calls` are the module's own calls.

    Args:
        method: a method's record with `modules`.
        tensors: the tensors of the package's contents.
        times: milliseconds by module, from the latest profile of the method; empty without one.
        most_rows: the number of modules and calls above which deep modules are merged into the ones
            around them, and equal calls on several lines into one.
    """
    calls: Sequence[Json] = method["modules"]
    deepest = max((len(_parts(call["module"])) for call in calls), default=0)
    depth = deepest
    while depth > 1 and _count_rows(calls, depth) > most_rows:
        depth -= 1
    root = _make_module("", "")
    for call in calls:
        _add_call(_find(root, _parts(call["module"])[:depth]), call, depth < deepest)
    _add_sizes(root, method["method"], tensors)
    for path, milliseconds in times.items():
        _find(root, _parts(path), make=False)["time"] += milliseconds
    _add_errors(root, method)
    return _sum_up(root)


def _parts(path: str) -> list[str]:
    return path.split(".") if path else []


def _count_rows(calls: Iterable[Json], depth: int) -> int:
    rows: set[tuple[str, ...]] = set()
    for call in calls:
        parts = tuple(_parts(call["module"])[:depth])
        rows |= {parts[:length] for length in range(len(parts) + 1)}
        rows.add((*parts, call["operator"], call["runs_on"], ""))
    return len(rows)


def _make_module(name: str, path: str) -> Tree:
    return {
        "name": name,
        "path": path,
        "runners": Counter[str](),
        "size": 0,
        "time": 0.0,
        "error": None,
        "calls": {},
        "children": {},
    }


def _find(root: Tree, parts: Sequence[str], make: bool = True) -> Tree:
    """Return the module at a path, given in parts; create it if necessary.

    With `make` false, return the innermost existing module around it instead.
    """
    module = root
    for number, part in enumerate(parts):
        if part not in module["children"]:
            if not make:
                break
            path = ".".join(parts[: number + 1])
            module["children"][part] = _make_module(part, path)
        module = module["children"][part]
    return module


def _add_call(module: Tree, call: Json, are_summed: bool) -> None:
    line = "" if are_summed else call["line"]
    key = (call["operator"], call["runs_on"], line)
    module["calls"][key] = module["calls"].get(key, 0) + call["count"]
    module["runners"][call["runs_on"]] += call["count"]


def _add_sizes(root: Tree, method: str, tensors: Iterable[Json]) -> None:
    for tensor in tensors:
        if method in tensor.get("methods", ()):
            name = tensor["name"].partition(",")[0]
            module = _find(root, _parts(name)[:-1], make=False)
            module["size"] += tensor["size"]


def _add_errors(root: Tree, method: Json) -> None:
    for culprit in method.get("culprits") or ():
        module = _find(root, _parts(culprit.get("module", "")), make=False)
        module["error"] = module["error"] or culprit["error"]


def _sum_up(module: Tree) -> Tree:
    """Return a module with the sums over the modules below it.

    A module that only wraps another is merged with it.
    """
    children = [_sum_up(child) for child in module["children"].values()]
    if module["name"] and len(children) == 1 and not module["calls"]:
        (child,) = children
        name = f"{module['name']}.{child['name']}"
        sums = {what: child[what] + module[what] for what in ("size", "time")}
        error = child["error"] or module["error"]
        return {**child, **sums, "name": name, "error": error}
    runners: Counter[str] = Counter(module["runners"])
    size, time = module["size"], module["time"]
    for child in children:
        runners += child["runners"]
        size += child["size"]
        time += child["time"]
    calls: list[Mapping[str, Any]] = []
    for (operator, runner, line), count in module["calls"].items():
        call = {"operator": operator, "runs_on": runner, "line": line, "count": count}
        calls.append(call)
    sums = {"runners": runners, "size": size, "time": time}
    return {**module, **sums, "calls": calls, "children": children}


def delegated_share(runners: Mapping[str, int]) -> float | None:
    """Return the share of calls that delegates run, or None if there are no calls.

    Calls that lowering folded don't count.
    """
    whole = sum(count for runner, count in runners.items() if runner != FOLDED)
    if whole:
        return 1 - runners.get(KERNELS, 0) / whole
    return None
