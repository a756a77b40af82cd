"""Loads packages as Python objects that have the methods of the source."""

from __future__ import annotations

import inspect
import json
import keyword
import operator
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any

from pipeline.devices.interface import DeviceError, PackageFiles
from pipeline.devices.registry import devices
from pipeline.devices.session import INTERPRETER, Session
from pipeline.features.loading.flat_spec import make_flat_spec
from pipeline.features.loading.manifest import (
    check_ptds,
    find_ptds,
    memory_planning,
    read_manifest,
)
from pipeline.features.loading.method_spec import ArgumentError, MethodSpec
from pipeline.features.loading.shared_state import find_sharing
from pipeline.program.operator_libraries import load_libraries
from pipeline.store.errors import PipelineError, listed
from pipeline.store.files import MANIFEST
from pipeline.store.names import METADATA


def load_package(
    path: str | PathLike[str],
    device: str = "",
    ptds: Sequence[str | PathLike[str]] = (),
    operators: Sequence[str] = (),
    trust: bool = False,
) -> LoadedPackage:
    """Load a package, with one callable per method.

    Argument names come from the manifest in the file's folder, or else from the package's metadata
    (`emit: {metadata: true}`). Without either, methods take a flat list of tensors by position and
    return a tuple.

    The manifest also vouches for the file's bytes. ExecuTorch's runtime checks little of a file: a
    damaged one can crash this process or overwrite its memory. A trial run in another process
    wouldn't reveal that, because the damage depends on what else is in memory.

    Args:
        device: the device that runs the package, such as "executorch" or "interpreter". By default
            each method gets a device that can run its delegates, and methods that share state get
            the interpreter.
        ptds: the package's `.ptd` files; by default the ones that the manifest names, in the same
            folder.
        operators: modules, and paths of libraries, that define operators which ExecuTorch lacks.
            They are loaded first, which runs their code. Modules in the working folder take
            precedence over installed ones.
        trust: load a package even if it has no manifest.

    Warns:
        UserWarning: methods share state, but the device gives each method memory of its own.

    Raises:
        PipelineError: a file is missing or corrupt; the manifest is damaged, belongs to another
            package or doesn't name a `.ptd`; or there is no manifest and `trust` is false.
    """
    pte = Path(path)
    content = PackageFiles.of(pte).contents()
    manifest = read_manifest(pte, content)
    if not manifest["files"] and not trust:
        raise PipelineError(
            f"{pte.name}: there is no {MANIFEST} next to it to check its bytes against, and a "
            "damaged file can crash this process; put its manifest there, or load it with "
            "`trust=True`"
        )
    ptd_paths = [Path(ptd) for ptd in ptds] or find_ptds(pte, manifest)
    ptd_contents = PackageFiles.of(pte, ptd_paths).data()
    check_ptds(dict(zip(ptd_paths, ptd_contents, strict=True)), pte, manifest)
    files = PackageFiles(pte.name, content, tuple(ptd_contents))
    methods = manifest["methods"].items()
    signatures = {
        name: facts["signature"] for name, facts in methods if "signature" in facts
    }
    # Without a manifest this setting is unknown, and the memory plans decide.
    shares_state = memory_planning(manifest).get("share_mutable_buffers") is not False
    return LoadedPackage(files, signatures or None, device, operators, shares_state)


class LoadedPackage:
    """The methods of a package, called as `package.encode(x)` or `package["encode"](x)`.

    If a method's name is an attribute of this class, such as `reset`, or isn't an identifier, call
    it as `package["reset"](x)`. `repr` shows how to call each method.

    A method keeps its state, the mutable buffers, for the life of the package. Methods share the
    buffers that the package plans in shared memory (`share_mutable_buffers`). A copy, pickled or
    made by `copy`, holds only the package's bytes and signatures: it needs no file, loads its
    methods afresh, and starts from the initial state.

    Attributes:
        name: the name of the package's file.
    """

    def __init__(
        self,
        files: PackageFiles,
        signatures: Mapping[str, Any] | None,
        device: str = "",
        operators: Sequence[str] = (),
        shares_state: bool = True,
    ) -> None:
        self._operators = tuple(operators)
        load_libraries(self._operators, Path.cwd())
        self.name = files.name
        self._files = files
        self._device = device
        self._shares_state = shares_state
        self._together = find_sharing(files.plans) if shares_state else ()
        if self._together and device and not devices().get(device).shares_state:
            self._stop_sharing(f"device '{device}' gives each method its own memory")
        self._open()
        # Argument names come from the manifest, or else from the package's metadata.
        self._signed_by = MANIFEST if signatures is not None else METADATA
        if signatures is None:
            signatures = self.metadata.get("methods")
        self._signatures = dict(signatures) if isinstance(signatures, Mapping) else {}
        self._methods = {name: self._method(name) for name in self._session.methods()}

    def _open(self) -> None:
        self._session = Session(self._files, self._device, self._together)

    def _stop_sharing(self, reason: str) -> None:
        """Give each method state of its own, and warn about it."""
        methods = listed(self._together)
        self._together = ()
        message = (
            f"{self.name}: methods {methods} share state in this package, but not on this device: "
            f"{reason}"
        )
        if self._device not in ("", INTERPRETER):
            message += f"; device='{INTERPRETER}' shares it"
        # Points at the caller, above this method, the constructor and `load_package`.
        warnings.warn(message, UserWarning, stacklevel=4)

    def _load(self, name: str) -> None:
        """Load a method.

        If no device was given and the interpreter can't load the methods that share state together,
        each of them gets state of its own.
        """
        try:
            self._session.load(name)
        except DeviceError as error:
            if self._device or name not in self._together:
                raise
            self._stop_sharing(str(error))
            self._open()
            self._session.load(name)

    def _method(self, name: str) -> LoadedMethod:
        if name not in self._signatures:
            signature = self._session.signature(name)
            spec = make_flat_spec(signature.inputs, signature.outputs)
            return LoadedMethod(self, name, spec, has_names=False)
        try:
            spec = MethodSpec.from_json(self._signatures[name])
        except PipelineError as error:
            raise PipelineError(
                f"{self.name}: {self._signed_by}: method '{name}': {error}"
            ) from None
        return LoadedMethod(self, name, spec, has_names=True)

    @property
    def methods(self) -> Mapping[str, LoadedMethod]:
        """The package's methods by name, including constant methods."""
        return dict(self._methods)

    @cached_property
    def metadata(self) -> dict[str, Any]:
        """The metadata in the file: the methods' signatures, the constants and the toolchain.

        Empty unless the package was built with `emit: {metadata: true}`.
        """
        plan = self._files.plans.get(METADATA)
        if (
            plan is None or plan.instructions or plan.input_orders
        ):  # not a constant method
            return {}
        # Another tool may have written the method, so it may return anything.
        with suppress(ValueError, TypeError, RecursionError):
            metadata = json.loads(self._session.run(METADATA, ())[0])
            if isinstance(metadata, dict):
                return metadata
        return {}

    def reset(self) -> None:
        """Restore the initial state of every method.

        Raises:
            PipelineError: the package has a method named `reset`, which the caller may have meant.
        """
        if "reset" in self._methods:
            raise PipelineError(
                f"{self.name}: has a method 'reset': package['reset'](...) calls it, and "
                "copy.copy(package) returns the package in its initial state"
            )
        self._open()

    def __getitem__(self, name: str) -> LoadedMethod:
        if name not in self._methods:
            names = ", ".join(self._methods) or "none"
            raise PipelineError(f"{self.name}: has no method '{name}'; it has {names}")
        return self._methods[name]

    def __getattr__(self, name: str) -> LoadedMethod:
        if name.startswith("_"):  # such as `_methods` before it is assigned
            raise AttributeError(name)
        try:
            return self[name]
        except PipelineError as error:
            raise AttributeError(str(error)) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._methods)

    def __len__(self) -> int:
        return len(self._methods)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._methods]

    def __reduce__(self) -> tuple[Any, ...]:
        files = PackageFiles(
            self.name, self._files.contents(), tuple(self._files.data())
        )
        arguments = (
            files,
            self._signatures,
            self._device,
            self._operators,
            self._shares_state,
        )
        return LoadedPackage, arguments

    def __repr__(self) -> str:
        lines = [f"LoadedPackage({self.name!r})"]
        for name, method in self._methods.items():
            call = name if _is_attribute(name) else f'["{name}"]'
            lines.append(f"  {call}{inspect.signature(method)}")
        return "\n".join(lines)


def _is_attribute(method: str) -> bool:
    """Return whether a method can be called as an attribute of its package."""
    is_name = method.isidentifier() and not keyword.iskeyword(method)
    return is_name and not method.startswith("_") and method not in _ATTRIBUTES


_ATTRIBUTES = {"name", *vars(LoadedPackage)}


class LoadedMethod:
    """A lowered method, called like the source's method.

    Arguments are checked before the run, and results after it: names, nesting, dtypes, ranks,
    sizes, and values that the export fixed. If the source changes an input in place, the caller's
    tensor is changed too.

    Attributes:
        has_names: whether the method has the source's signature; if not, it takes flat inputs by
            position.
    """

    def __init__(
        self, package: LoadedPackage, name: str, spec: MethodSpec, has_names: bool
    ) -> None:
        self.package = package
        self.name = self.__name__ = name
        self.spec = spec
        self.has_names = has_names
        self.__signature__ = spec.signature

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the method.

        Raises:
            ArgumentError: the arguments don't fit; it lists every mistake, and is also a TypeError.
            PipelineError: the device refuses the call, or its outputs don't fit.
        """
        try:
            leaves = self.spec.flat_arguments(args, kwargs)
        except ArgumentError as error:
            raise ArgumentError(*self._messages(error)) from None
        self.load()
        outputs = self.package._session.run(self.name, self.spec.lay_out(leaves))
        number_changed = len(self.spec.changes)  # changed inputs come first
        try:
            result = self.spec.nested_outputs(leaves, outputs[number_changed:])
        except PipelineError as error:
            raise PipelineError(*self._messages(error)) from None
        for place, value in zip(
            self.spec.changes, outputs[:number_changed], strict=True
        ):
            leaves[place].copy_(value)
        # Without a signature, it is unknown whether the source returned a lone value in a tuple.
        is_constant_method = (
            not self.has_names and not self.spec.args and len(result) == 1
        )
        return result[0] if is_constant_method else result

    @property
    def device(self) -> str:
        """The name of the device that runs the method."""
        return self.package._session.choose_device(self.name)

    def load(self) -> None:
        """Load the method now, rather than at its first call.

        Raises:
            DeviceError: the device can't load it.
        """
        self.package._load(self.name)

    def text(self) -> str:
        """Return a readable description of the program that the device runs."""
        return self.package._session.text(self.name)

    def _messages(self, error: PipelineError) -> list[str]:
        subject = f"{self.package.name}: method '{self.name}': "
        return [subject + line for line in error.lines]

    def __reduce__(self) -> tuple[Any, ...]:
        return operator.getitem, (self.package, self.name)

    def __repr__(self) -> str:
        return f"{self.name}{inspect.signature(self)}"
