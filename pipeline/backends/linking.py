"""The CMake options and libraries of each backend, and of the operators that no delegate runs.

The table is linking.toml; which operators a library of kernels has is read from the lists that
ExecuTorch's wheel brings. Imports no torch.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

_LISTED = re.compile(r"^- (?:op|func): ([\w:.]+)", re.MULTILINE)
_NATIVE = re.compile(r"^- func: ([\w.]+)|^  autogen: (.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Linked:
    """The CMake option and the library of one backend.

    Attributes:
        option, library: of ExecuTorch's CMake build; "" where it has none.
        more: what is needed beside, for people.
    """

    option: str = ""
    library: str = ""
    more: str = ""


@dataclass(frozen=True)
class KernelLibrary:
    """A library of kernels.

    Attributes:
        library: registers all of its kernels when it is linked whole.
        operators: names, namespaces (`llama::*`) or a file of the wheel, as in linking.toml.
        option: of CMake; "" for what is always built.
        kernels: the library without registrations, "" where its operators can't be selected.
    """

    name: str
    library: str
    operators: Sequence[str]
    option: str = ""
    kernels: str = ""

    @property
    def listing(self) -> str:
        """The file of the wheel that lists its operators, with which they are selected; or ""."""
        return next((each for each in self.operators if each.endswith(".yaml")), "")


@cache
def _table() -> Mapping[str, Any]:
    return tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


@cache
def backend_links() -> Mapping[str, Linked]:
    """Return what is linked for each backend of the catalogue."""
    return {name: Linked(**own) for name, own in _table()["backends"].items()}


@cache
def kernel_libraries() -> Mapping[str, KernelLibrary]:
    """Return ExecuTorch's libraries of kernels, by name."""
    return {name: KernelLibrary(name, **own) for name, own in _table()["kernels"].items()}


def find_kernels(operator: str) -> KernelLibrary | None:
    """Return the library that has a kernel of an operator, as `aten::add.out`; None where none of
    ExecuTorch's has."""
    wanted = {operator, f"{operator.partition('::')[0]}::*"}
    libraries = kernel_libraries().values()
    return next((each for each in libraries if wanted & operators_of(each.name)), None)


@cache
def operators_of(library: str) -> frozenset[str]:
    """Return the operators of a library that are known by name, and the namespaces."""
    found = set[str]()
    for each in kernel_libraries()[library].operators:
        found.update(_read_names(_in("executorch", each)) if each.endswith(".yaml") else (each,))
    return frozenset(found)


@cache
def known_operators() -> Mapping[str, frozenset[str]]:
    """Return all operators of those namespaces of which they can be known, by namespace: what
    ExecuTorch's wheel lists, and ATen's as torch has them."""
    found: dict[str, set[str]] = {}
    for operator in frozenset().union(*map(operators_of, kernel_libraries())):
        if not operator.endswith("*"):
            found.setdefault(operator.partition("::")[0], set()).add(operator)
    own = _read_names(_in("executorch", "kernels/portable/custom_ops.yaml"))
    found.setdefault("aten", set()).update(own)
    native = _in("torchgen", "packaged/ATen/native/native_functions.yaml")
    for name, autogen in _NATIVE.findall(_read(native)):
        names = [name] if name else re.split(r",\s*", autogen.strip())
        found["aten"].update(f"aten::{each}" for each in names)
    return {namespace: frozenset(names) for namespace, names in found.items()}


def _read_names(path: Path) -> Iterator[str]:
    for name in _LISTED.findall(_read(path)):
        yield name if "::" in name else f"aten::{name}"


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def _in(package: str, path: str) -> Path:
    """Return the path of a file of an installed package."""
    spec = find_spec(package)
    folders = spec.submodule_search_locations if spec is not None else None
    return Path(next(iter(folders or ()), "")) / path
