"""The files of a package, mapped into memory, with the names and users of their parts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from pipeline.compile.inspect.package_file import open_file
from pipeline.program.flatbuffer import Span
from pipeline.program.pte import TensorType
from pipeline.store.digest import Digest
from pipeline.store.errors import PipelineError, listed

_MOST_NAMES = 3


@dataclass(frozen=True)
class KnownTensor:
    """A tensor of a method's program; equal tensors have the same `base` in any layout."""

    names: frozenset[str]
    dtype: str
    shape: tuple[int, ...]
    size: int
    base: Digest


class PackageView:
    """The files of a package; the arguments are those of `describe_contents`.

    Raises:
        PipelineError: the files don't contain exactly one `.pte`, or one of them is invalid.
    """

    def __init__(
        self,
        files: Mapping[str, Path],
        constants: Mapping[str, Mapping[str, Any]],
        keys: Mapping[str, Collection[str]],
        digests: Mapping[str, Mapping[tuple[int, int], Digest]],
    ) -> None:
        self.files = [
            open_file(n, path, digests.get(n, {})) for n, path in sorted(files.items())
        ]
        programs = [file for file in self.files if not file.name.endswith(".ptd")]
        if len(programs) != 1:
            raise PipelineError(f"a package has one .pte, this one has {len(programs)}")
        (self.pte,) = programs
        self.layout = self.pte.layout
        self.plans = sorted(self.layout.plans, key=lambda plan: plan.name)
        self._constants = constants
        self._keys = keys
        # `_tensors` keeps the order that the numbers in `consumed` refer to; `_forms` is by form
        # digest.
        self._tensors = {
            method: _parse_tensors(record) for method, record in constants.items()
        }
        self._forms = {
            method: {
                digest: tensor
                for tensor in self._tensors[method]
                for digest in (tensor.base, *record["tensors"][tensor.base]["forms"])
            }
            for method, record in constants.items()
        }

    @cached_property
    def users(self) -> dict[str, set[str]]:
        """The methods that use each key of named data, including tensors in `.ptd` files."""
        methods_by_key = {key: set(methods) for key, methods in self.external.items()}
        for method, methods in self._keys.items():
            for key in methods:
                methods_by_key.setdefault(key, set()).add(method)
        return methods_by_key

    @cached_property
    def external(self) -> dict[str, set[str]]:
        """The methods that use each key of a portable operator's tensor outside the `.pte`."""
        methods_by_key: dict[str, set[str]] = defaultdict(set)
        for plan in self.plans:
            for key in plan.external:
                methods_by_key[key].add(plan.name)
        return dict(methods_by_key)

    def indices(self, planned: bool) -> dict[int, tuple[TensorType, set[str]]]:
        """Return the largest type and the users of each constant, by its index in the `.pte`.

        If `planned`, return those of mutable data instead.
        """
        types_by_index: dict[int, tuple[TensorType, set[str]]] = {}
        for plan in self.plans:
            for index, tensor_type in plan.mutable if planned else plan.constants:
                largest, methods = types_by_index.get(index, (tensor_type, set()))
                if tensor_type.size > largest.size:
                    largest = tensor_type
                types_by_index[index] = (largest, methods | {plan.name})
        return types_by_index

    @cached_property
    def payloads(self) -> dict[Span, list[tuple[str, int, str]]]:
        """The delegates that share each payload, each as its method, index and backend."""
        delegates_by_payload: dict[Span, list[tuple[str, int, str]]] = defaultdict(list)
        for plan in self.plans:
            for number, (backend, payload) in enumerate(plan.delegates):
                if payload is not None:
                    delegates_by_payload[payload].append((plan.name, number, backend))
        return dict(delegates_by_payload)

    def lookup(self, digest: Digest, methods: Collection[str]) -> KnownTensor | None:
        """Return the tensor with these bytes in the programs of some methods, or None.

        Without methods, the programs of all methods are searched.
        """
        tensors = []
        # Sorted because the dtype and shape below come from the first method.
        for method in sorted(methods or self._forms):
            forms = self._forms.get(method, {})
            if digest in forms:
                tensors.append(forms[digest])
        if not tensors:
            return None
        names: set[str] = set()
        for tensor in tensors:
            names |= tensor.names  # tied weights have several names
        return replace(tensors[0], names=frozenset(names))

    def consumed(self, method: str, payload: Digest) -> list[KnownTensor]:
        """Return the tensors of a method that were packed into a payload."""
        numbers = self._constants.get(method, {"consumed": {}})["consumed"].get(
            payload,
            (),
        )
        return [self._tensors[method][number] for number in numbers]


def _parse_tensors(record: Mapping[str, Any]) -> list[KnownTensor]:
    return [
        KnownTensor(
            frozenset(t["names"]),
            t["dtype"],
            tuple(t["shape"]),
            t["size"],
            Digest(base),
        )
        for base, t in sorted(record["tensors"].items())
    ]


def join_names(names: Iterable[str]) -> str:
    """Join distinct names with commas, truncating a long list to its first few names."""
    return listed(sorted(set(names)), _MOST_NAMES)
