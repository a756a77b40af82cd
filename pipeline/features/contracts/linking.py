"""The CMake options and libraries of each backend, and of the operators outside delegates.

The tables are in linking.toml, here and in the folders of families. The operators of a kernel
library are read from lists in ExecuTorch's wheel. Imports no torch.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pipeline.backends.families import read_tables

_LISTED = re.compile(r"^- (?:op|func): ([\w:.]+)", re.MULTILINE)
_NATIVE = re.compile(r"^- func: ([\w.]+)|^  autogen: (.+)$", re.MULTILINE)


@dataclass(frozen=True)
class KernelLibrary:
    """A library of kernels.

    Attributes:
        library: the library that registers all of its kernels if it is linked whole.
        operators: names, namespaces (`llama::*`) or a file of the wheel, as in linking.toml.
        option: its CMake option; "" if it is always built.
        kernels: the library without registrations, or "" if its operators can't be selected.
    """

    name: str
    library: str
    operators: Sequence[str]
    option: str = ""
    kernels: str = ""

    @property
    def listing(self) -> str:
        """The file of the wheel that lists its operators, for selecting them, or ""."""
        return next(filter(_is_listing, self.operators), "")


def _is_listing(operator: str) -> bool:
    return operator.endswith(".yaml")


@cache
def _table() -> Mapping[str, Any]:
    return read_tables("linking.toml")


@cache
def backend_links() -> Mapping[str, dict[str, str]]:
    """Return the description of what to link for each backend of the catalogue."""
    links: dict[str, dict[str, str]] = {}
    for name, row in _table()["backends"].items():
        links[name] = describe_linked(name, **row)
    return links


def describe_linked(
    name: str, option: str = "", library: str = "", more: str = ""
) -> dict[str, str]:
    return {"name": name, "option": option, "library": library, "more": more}


@cache
def kernel_libraries() -> Mapping[str, KernelLibrary]:
    """Return ExecuTorch's kernel libraries, by name."""
    return {
        name: KernelLibrary(name, **row) for name, row in _table()["kernels"].items()
    }


def find_kernels(operator: str) -> KernelLibrary | None:
    """Return the ExecuTorch library that contains an operator, such as `aten::add.out`, or None."""
    namespace = operator.partition("::")[0]
    names = {operator, f"{namespace}::*"}
    for library in kernel_libraries().values():
        if names & operators_of(library.name):
            return library
    return None


@cache
def operators_of(library: str) -> frozenset[str]:
    """Return the operators of a library: their names, and whole namespaces as `llama::*`."""
    names: set[str] = set()
    for operator in kernel_libraries()[library].operators:
        if _is_listing(operator):
            names.update(_read_names(_in("executorch", operator)))
        else:
            names.add(operator)
    return frozenset(names)


@cache
def known_operators() -> Mapping[str, frozenset[str]]:
    """Return all operators, by namespace, of the namespaces that are known completely.

    They are ATen's operators in torch, and the operators that ExecuTorch's wheel lists.
    """
    by_namespace: dict[str, set[str]] = {"aten": set()}
    for operator in frozenset().union(*map(operators_of, kernel_libraries())):
        if not operator.endswith("*"):
            namespace = operator.partition("::")[0]
            by_namespace.setdefault(namespace, set()).add(operator)
    aten = by_namespace["aten"]
    aten.update(_read_names(_in("executorch", "kernels/portable/custom_ops.yaml")))
    native_functions = _in("torchgen", "packaged/ATen/native/native_functions.yaml")
    for name, autogen in _NATIVE.findall(_read(native_functions)):
        names = [name] if name else re.split(r",\s*", autogen.strip())
        aten.update(f"aten::{name}" for name in names)
    return {namespace: frozenset(names) for namespace, names in by_namespace.items()}


def _read_names(path: Path) -> Iterator[str]:
    for name in _LISTED.findall(_read(path)):
        yield name if "::" in name else f"aten::{name}"


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def _in(package: str, path: str) -> Path:
    """Return the path of a file in an installed package."""
    spec = find_spec(package)
    folders = spec.submodule_search_locations if spec is not None else None
    return Path(next(iter(folders or ()), "")) / path
