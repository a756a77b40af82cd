"""Packages to call from Python: `load_package` gives an object with the methods of the source."""

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
from typing import Any, NoReturn

from pipeline.config.operators import load_libraries
from pipeline.devices.interface import DeviceError, PackageFiles
from pipeline.devices.registry import devices
from pipeline.devices.session import INTERPRETER, Session
from pipeline.devices.shared_state import find_sharing
from pipeline.program.method_spec import ArgumentError, MethodSpec, make_flat_spec
from pipeline.store.digest import hash_bytes
from pipeline.store.errors import PipelineError, listed
from pipeline.store.files import MANIFEST
from pipeline.store.names import METADATA


def load_package(
    path: str | PathLike[str],
    device: str = "",
    ptds: Sequence[str | PathLike[str]] = (),
    operators: Sequence[str] = (),
) -> LoadedPackage:
    """Load a package, with one callable per method.

    The names of arguments are those of the manifest beside the file, or without one those of the
    package's metadata (`emit: {metadata: true}`). Without either, methods take their tensors by
    position, flat, and give a tuple.

    Args:
        device: on which it runs, such as "executorch" or "interpreter"; by default one for each
            method that can run its delegates, and the interpreter for methods that share state.
        ptds: its `.ptd` files; by default those that the manifest names, beside it.
        operators: modules, and paths of libraries, of operators that are not ExecuTorch's. They
            are loaded first, which runs their code, and modules of the working folder before
            installed ones.

    Warns:
        UserWarning: methods share state, and the device gives each of them memory of its own.

    Raises:
        PipelineError: a file is missing or corrupt, the manifest is that of another package, or a
            `.ptd` is none of those that the manifest names.
    """
    pte, data = Path(path), [Path(each) for each in ptds]
    content = PackageFiles.of(pte).contents()
    manifest = _manifest(pte, content)
    data = data or _find_data(pte, manifest)
    files = PackageFiles(pte.name, content, tuple(PackageFiles.of(pte, data).data()))
    _check_data(dict(zip(data, files.data(), strict=True)), pte, manifest)
    methods = manifest["methods"].items()
    signatures = {name: facts["signature"] for name, facts in methods if "signature" in facts}
    shares_state = _planning(manifest).get("share_mutable_buffers") is not False
    return LoadedPackage(files, signatures or None, device, operators, shares_state)


class LoadedPackage:
    """The methods of a package: `package.encode(x)` or `package["encode"](x)`. `name` is that of
    its file.

    A method whose name is taken here, such as `reset`, or is no name in Python, is called by
    `package["reset"](x)`; `repr` shows how each method is called.

    A method keeps its state, the mutable buffers, as long as the package lives. Methods share the
    buffers that the package plans in shared memory (`share_mutable_buffers`). Copies, pickled or
    by `copy`, hold the package's bytes and signatures and nothing else: they need no file, load
    their methods anew, and begin with the initial state.
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
            self._stop_sharing(f"device '{device}' gives each method memory of its own")
        self._open()
        self._signed_by = MANIFEST if signatures is not None else METADATA
        if signatures is None:
            known = self.metadata.get("methods")
            signatures = known if isinstance(known, dict) else {}
        self._signatures = dict(signatures)
        self._methods = {name: self._method(name) for name in self._session.methods()}

    def _open(self) -> None:
        self._session = Session(self._files, self._device, self._together)

    def _stop_sharing(self, reason: str) -> None:
        """Let each method have state of its own, and warn about it."""
        methods, self._together = listed(self._together), ()
        remedy = "" if self._device in ("", INTERPRETER) else f"; device='{INTERPRETER}' shares it"
        what = f"{self.name}: methods {methods} share state in this package, but not here: {reason}"
        warnings.warn(f"{what}{remedy}", UserWarning, stacklevel=4)

    def _load(self, name: str) -> None:
        """Load a method. By default, where the interpreter can't load all methods that share state,
        each is loaded by itself."""
        try:
            self._session.load(name)
        except DeviceError as error:
            if self._device or name not in self._together:
                raise
            self._stop_sharing(str(error))
            self._open()
            self._session.load(name)

    def _method(self, name: str) -> LoadedMethod:
        if name in self._signatures:
            try:
                return LoadedMethod(self, name, MethodSpec.from_json(self._signatures[name]), True)
            except PipelineError as error:
                where = f"{self.name}: {self._signed_by}: method '{name}'"
                raise PipelineError(f"{where}: {error}") from None
        declared = self._session.declared(name)
        return LoadedMethod(self, name, make_flat_spec(declared.inputs, declared.outputs), False)

    @property
    def methods(self) -> Mapping[str, LoadedMethod]:
        """Its methods by name, constant methods among them."""
        return dict(self._methods)

    @cached_property
    def metadata(self) -> dict[str, Any]:
        """The metadata inside the file, where it was built with `emit: {metadata: true}`: the
        signatures of its methods, constants, toolchain; else empty."""
        plan = self._files.plans.get(METADATA)
        if plan is None or plan.instructions or plan.input_orders:  # no constant method
            return {}
        with suppress(ValueError, TypeError, RecursionError):
            metadata = json.loads(self._session.run(METADATA, ())[0])
            if isinstance(metadata, dict):
                return metadata
        return {}

    def reset(self) -> None:
        """Give every method its initial state.

        Raises:
            PipelineError: the package has a method `reset`, which may be meant.
        """
        if "reset" in self._methods:
            raise PipelineError(
                f"{self.name}: has a method 'reset': package['reset'](...) calls it, and "
                "copy.copy(package) is the same package with its initial state"
            )
        self._open()

    def __getitem__(self, name: str) -> LoadedMethod:
        if name not in self._methods:
            known = ", ".join(self._methods) or "none"
            raise PipelineError(f"{self.name}: has no method '{name}'; it has {known}")
        return self._methods[name]

    def __getattr__(self, name: str) -> LoadedMethod:
        if name.startswith("_"):  # as `_methods` before there are any
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
        files = PackageFiles(self.name, self._files.contents(), tuple(self._files.data()))
        options = (self._device, self._operators, self._shares_state)
        return LoadedPackage, (files, self._signatures, *options)

    def __repr__(self) -> str:
        lines = [f"LoadedPackage({self.name!r})"]
        for name, method in self._methods.items():
            call = name if _is_attribute(name) else f'["{name}"]'
            lines.append(f"  {call}{inspect.signature(method)}")
        return "\n".join(lines)


def _is_attribute(method: str) -> bool:
    """Return whether a method can be called as an attribute of its package."""
    is_name = method.isidentifier() and not keyword.iskeyword(method)
    return is_name and not method.startswith("_") and method not in _TAKEN


_TAKEN = {"name", *vars(LoadedPackage)}


class LoadedMethod:
    """A lowered method, called as the source's was.

    Arguments are checked before it runs, and what it returns after: names, nesting, dtypes, ranks,
    sizes, and values that the export fixed. Inputs that the source changes in place are changed.

    Attributes:
        has_names: whether it has the source's signature; if not, it takes flat inputs by position.
    """

    def __init__(self, package: LoadedPackage, name: str, spec: MethodSpec, named: bool) -> None:
        self.package = package
        self.name = self.__name__ = name
        self.spec = spec
        self.has_names = named
        self.__signature__ = spec.signature

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the method.

        Raises:
            ArgumentError: the arguments do not fit, with all that is wrong; also a TypeError.
            PipelineError: the device refuses the call, or returns what it must not.
        """
        try:
            leaves = self.spec.flat_arguments(args, kwargs)
        except ArgumentError as error:
            raise ArgumentError(*self._messages(error)) from None
        self.load()
        outputs = self.package._session.run(self.name, self.spec.lay_out(leaves))
        count = len(self.spec.changes)  # inputs, which come first
        try:
            result = self.spec.nested_outputs(leaves, outputs[count:])
        except PipelineError as error:
            raise PipelineError(*self._messages(error)) from None
        for place, value in zip(self.spec.changes, outputs[:count], strict=True):
            leaves[place].copy_(value)
        if not self.has_names and len(result) == 1 and not self.spec.args:
            return result[0]  # a constant method
        return result

    @property
    def device(self) -> str:
        """The name of the device on which it runs."""
        return self.package._session.choose_device(self.name)

    def load(self) -> None:
        """Make it ready to run, which otherwise the first call does. Raises DeviceError."""
        self.package._load(self.name)

    def text(self) -> str:
        """Describe for people what the device runs."""
        return self.package._session.text(self.name)

    def _messages(self, error: PipelineError) -> list[str]:
        subject = f"{self.package.name}: method '{self.name}': "
        return [subject + line for line in error.lines]

    def __reduce__(self) -> tuple[Any, ...]:
        return operator.getitem, (self.package, self.name)

    def __repr__(self) -> str:
        return f"{self.name}{inspect.signature(self)}"


def _manifest(pte: Path, content: bytes) -> dict[str, Any]:
    """Read the manifest beside a package; without one, that of no files and no methods."""
    path = pte.parent / MANIFEST
    try:
        manifest: dict[str, Any] = json.loads(path.read_bytes())
        known = {name: file["digest"] for name, file in manifest["files"].items()}
        dict(manifest["methods"])
    except FileNotFoundError:
        return {"files": {}, "methods": {}}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise PipelineError(f"{pte.name}: {MANIFEST} beside it cannot be read: {error!r}") from None
    if hash_bytes(content) not in known.values():
        raise PipelineError(
            f"{pte.name}: {MANIFEST} beside it is not its own: it describes {', '.join(known)} "
            "with other contents; build the package again, or take the manifest away"
        )
    return manifest


def _planning(manifest: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a manifest's settings of memory planning; {} if it has none."""
    emit = manifest.get("emit")
    planning = emit.get("memory_planning") if isinstance(emit, dict) else None
    return planning if isinstance(planning, dict) else {}


def _find_data(pte: Path, manifest: Mapping[str, Any]) -> list[Path]:
    """Return the `.ptd` files that a manifest names. Raises PipelineError where one is missing."""
    found = [pte.parent / name for name in sorted(manifest["files"]) if name.endswith(".ptd")]
    if missing := [path.name for path in found if not path.exists()]:
        raise PipelineError(
            f"{pte.name}: needs {listed(missing)}, which is not beside it; put it there, or give "
            "it as `ptds`"
        )
    return found


def _check_data(ptds: Mapping[Path, bytes], pte: Path, manifest: Mapping[str, Any]) -> None:
    """Raise PipelineError for a `.ptd` that doesn't fit, with whose weights it would compute, and
    for one that is not given."""
    own = {n: file for n, file in sorted(manifest["files"].items()) if n.endswith(".ptd")}
    known = {file["digest"] for file in own.values()}
    given = {hash_bytes(content): ptd for ptd, content in ptds.items()}
    for digest, ptd in given.items() if manifest["files"] else ():
        if digest not in known:
            _refuse(pte, ptd, digest, len(ptds[ptd]), own)
    if missing := [name for name, file in own.items() if file["digest"] not in given]:
        raise PipelineError(f"{pte.name}: needs {', '.join(missing)} too; give all its .ptd files")


def _refuse(
    pte: Path, ptd: Path, digest: str, size: int, own: Mapping[str, Mapping[str, Any]]
) -> NoReturn:
    """Raise PipelineError for a file that is none of a package's own `.ptd` files."""
    if (expected := own.get(ptd.name)) is None:
        files = ", ".join(own)
        needed = f"it needs the {files} that it was built with" if own else "it needs none"
        raise PipelineError(f"{pte.name}: {ptd.name} is no file of this package; {needed}")
    theirs, ours = f"{size:,} bytes", f"{expected.get('size', 0):,} bytes"
    if theirs == ours:
        theirs, ours = f"digest {digest[:12]}", str(expected["digest"])[:12]
    raise PipelineError(
        f"{pte.name}: {ptd.name} is damaged, or of another build: {theirs}, not {ours}; take the "
        "one that it was built with"
    )
