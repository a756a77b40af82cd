"""What an entry of the backend catalogue is made of. No torch until a part is built."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from pipeline.backends.options import Options
from pipeline.backends.quantize_options import QuantizeConfig

if TYPE_CHECKING:
    from executorch.exir.backend.partitioner import Partitioner
    from executorch.exir.pass_base import ExportedProgramPassBase
    from torch.export import ExportedProgram
    from torch.fx import GraphModule, Node
    from torchao.quantization.pt2e.quantizer import Quantizer

    from pipeline.backends.delegate_runtime import DelegateRuntime

Remap = Callable[[bytes, Mapping[int, int]], bytes | None]
# Of a partitioner and the program that it is about to be asked about.
Reasons: TypeAlias = "Callable[[Partitioner, ExportedProgram], AbstractContextManager[Why]]"
Why: TypeAlias = "dict[Node, str]"


@dataclass(frozen=True)
class Sight:
    """What a backend's preprocess function sees of a partition; by default, everything.

    Only what is known not to change its output may be left out: the cache then takes partitions
    that differ in nothing else for one.

    `names_count`: whether names of nodes and tensors can matter in this program.
    `unread`: keys of `node.meta` that it does not read.
    `read`: what it reads of them all the same, for the nodes of one graph.
    `remap`: gives a payload other debug handles, byte for byte as if it had been made with them,
        or None if it can't; a payload that holds none is given back. Without it, debug handles
        are seen.
    `fixed_handles`: those that mean something to the payload, and so are seen in any case.
    """

    names_count: Callable[[ExportedProgram], bool] = lambda program: True
    unread: frozenset[str] = frozenset()
    read: Callable[[Sequence[Node]], Sequence[Any]] = lambda nodes: [None] * len(nodes)
    remap: Remap | None = None
    fixed_handles: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Requirement:
    """Something that a backend needs beside this package's plain install.

    `there` tells whether it is, without importing it. `what` names it and `remedy` says how to get
    it, for people.
    """

    what: str
    remedy: str
    there: Callable[[], bool]


def extra(name: str, *modules: str) -> Requirement:
    """Modules that an extra of this package installs."""
    return Requirement(
        ", ".join(modules),
        f"pip install 'pte-pipeline[{name}]'",
        lambda: all(importable(module) for module in modules),
    )


def sdk(what: str, variable: str, where: str) -> Requirement:
    """A vendor's SDK, whose folder an environment variable names."""
    return Requirement(
        what,
        f"get it from {where} and set {variable} to its folder",
        lambda: os.path.isdir(os.environ.get(variable) or ""),
    )


def built(module: str, remedy: str) -> Requirement:
    """A module inside executorch that its wheel leaves out."""
    return Requirement(module, remedy, lambda: _has_file(module))


def _has_file(module: str) -> bool:
    """Whether a module's file is there; nothing is imported."""
    package, *rest = module.split(".")
    spec = find_spec(package)
    folders = (spec.submodule_search_locations or ()) if spec is not None else ()
    return any(
        any(Path(folder, *rest).parent.glob(f"{rest[-1]}.*"))
        or Path(folder, *rest, "__init__.py").is_file()
        for folder in folders
    )


def importable(module: str) -> bool:
    """Whether a module is installed; it and its parents are not imported, so only the first name
    of a dotted one counts."""
    return find_spec(module.partition(".")[0]) is not None


@dataclass(frozen=True)
class Constructor:
    """A callable of the installed executorch, or of what it builds on, that options of an entry
    are handed to.

    `constructors.json` describes it, the plan asks that of what a config may say, and tests hold
    the entry to it (pipeline/backends/describe.py).

    Attributes:
        target: `module:function`, `module:Class` or `module:Class.method`, where it is defined;
            with `[expression]` behind it, the keys that it reads of a mapping, or that it compares
            with those of compile specs, where upstream takes options so.
        of: whose options its parameters are: the partitioner's or the quantizer's.
        renamed: option to parameter, where they are not called the same.
        left_out: parameters that are no option, and why.
        defaults: options whose default is not the parameter's, and why.
    """

    target: str
    of: Literal["partitioner", "quantizer"] = "partitioner"
    renamed: Mapping[str, str] = field(default_factory=dict, hash=False)
    left_out: Mapping[str, str] = field(default_factory=dict, hash=False)
    defaults: Mapping[str, str] = field(default_factory=dict, hash=False)


_TARGET = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")


@dataclass(frozen=True)
class Backend:
    """One entry of the catalogue.

    Attributes:
        name: what configs call it.
        backend_id: by what name a program calls the delegate.
        summary: what it is for, in a few words.
        options: those of its partitioner.
        quantizer: those of its quantizer, or None where it has none.
        distributions: those whose versions can change what it makes.
        joint: it sees all methods at once (`preprocess_multimethod`).
        make_partitioner: from its options; imports the backend.
        make_passes: passes over the edge program of a method that lower it instead of a
            partitioner, from its options; imports the backend. None where it has a partitioner.
        kernels: the namespace of the operators that its passes make, which the device's runtime
            has kernels for, and no delegate.
        reasons: a context around one call of its partitioner, with a mapping of nodes to why they
            were left that is full when it ends; the partitioner chooses the same within it. None
            where it tells nothing.
        looks_into: the control flow whose bodies its partitioner looks into, as in "cond"; None
            where that is not known.
        preserve_ops: operators that edge conversion leaves whole for its passes.
        make_quantizer: from its options; imports the backend.
        apply_quantizer: instead of `prepare_pt2e` and `convert_pt2e`, for backends that quantize
            in their own way: an ATen module, the config and batches of calibration inputs, which
            are tuples of arguments, to the quantized module.
        make_sight: what its preprocess function sees.
        names_count: whether what it makes of a method can depend on the names of its values.
        requirements: what must be there to lower to it.
        facts: what else of this machine can change what it makes, for keys: versions of tools that
            are no distributions, variables of the environment. None where nothing else does.
        around_preprocess: a context in which its preprocess function gives the same bytes for the
            same partition, and refuses what its runtime can't run; by default it does so anyway.
        unreproducible: why its bytes differ from run to run all the same, or "".
        plugin: the distribution that brings it, where this package does not.
        edge_operators: those beyond Core ATen that its quantizer leaves in a program and its
            partitioner takes, such as "aten.bitwise_and.Scalar".
        unsupported: why this package can't lower to it though ExecuTorch can, or "".
        constructors: what its options are handed to, in the installed executorch.
        beyond: options that are no parameter of a constructor, and what they are.
        cannot_run: gives why this machine can't run what it makes, or "". None where every
            machine that builds can.
        preprocess: its preprocess function as `module:function`, which is imported when something
            is lowered: of a program and its compile specs to a `PreprocessResult`. A backend that
            has it needs no `BackendDetails` class; where both are there, the function is called.
        details: its `BackendDetails` class as `module:Class`, if one is installed.
        make_runtime: gives a Python runtime of its delegates, with which the interpreter runs what
            ExecuTorch's own runtime can't; imports the backend. None where it has none.
    """

    name: str
    backend_id: str
    summary: str
    options: type[Options]
    make_partitioner: Callable[[Any], Partitioner]
    quantizer: type[QuantizeConfig] | None = None
    distributions: tuple[str, ...] = ("executorch", "flatbuffers", "torch", "torchao")
    joint: bool = False
    make_quantizer: Callable[[Any], Quantizer | None] = lambda options: None
    apply_quantizer: Callable[[GraphModule, Any, Sequence[tuple[Any, ...]]], GraphModule] | None = (
        None
    )
    make_sight: Callable[[], Sight] = Sight
    names_count: bool = True
    requirements: tuple[Requirement, ...] = ()
    facts: Callable[[], Mapping[str, str]] | None = None
    around_preprocess: Callable[[], AbstractContextManager[Any]] = nullcontext
    unreproducible: str = ""
    plugin: str = ""
    edge_operators: tuple[str, ...] = ()
    unsupported: str = ""
    constructors: tuple[Constructor, ...] = ()
    beyond: Mapping[str, str] = field(default_factory=dict, hash=False)
    cannot_run: Callable[[], str] | None = None
    preprocess: str = ""
    details: str = ""
    make_runtime: Callable[[], DelegateRuntime] | None = None
    make_passes: Callable[[Any], Sequence[ExportedProgramPassBase]] | None = None
    kernels: str = ""
    preserve_ops: tuple[str, ...] = ()
    reasons: Reasons | None = None
    looks_into: frozenset[str] | None = None

    def __post_init__(self) -> None:
        for name in ("preprocess", "details"):
            target = getattr(self, name)
            if target and not _TARGET.fullmatch(target):
                raise ValueError(f"{self.name}: {name} must be `module:name`, not {target!r}")
        if self.preprocess and self.joint:
            raise ValueError(
                f"{self.name}: a preprocess function sees one partition at a time, so this backend "
                "can't be joint"
            )

    @property
    def overridden(self) -> str:
        """What is to be said of a backend that ships both a function and a class; else ""."""
        if not (self.preprocess and self.details):
            return ""
        return f"{self.name} is preprocessed by {self.preprocess}, and not by {self.details}"

    @property
    def machine(self) -> dict[str, Any]:
        """What of this machine counts for it: its facts, what it lacks, and why it can't be run
        here. Empty where nothing does."""
        facts = dict(sorted(self.facts().items())) if self.facts is not None else {}
        reason = self.cannot_run() if self.cannot_run is not None else ""
        told = {
            "facts": facts,
            "missing": [need.what for need in self.missing()],
            "cannot_run": reason,
        }
        return {name: value for name, value in told.items() if value}

    def missing(self) -> Iterator[Requirement]:
        """What must be installed before anything can be lowered to it."""
        return (each for each in self.requirements if not each.there())

    @property
    def quantization(self) -> Quantization | None:
        """Its entry among the quantizers; None where it has none."""
        if self.quantizer is None:
            return None
        return Quantization(
            name=self.name,
            options=self.quantizer,
            distributions=self.distributions,
            make_quantizer=self.make_quantizer,
            apply_quantizer=self.apply_quantizer,
            requirements=self.requirements,
            facts=self.facts,
        )


@dataclass(frozen=True)
class Quantization:
    """One quantizer: that of a backend, or one without a backend of its own.

    `rewrite` quantizes a program by itself, without `prepare_pt2e` and without inputs: it gives an
    ATen module, which is exported again. The rest is as for a `Backend`.
    """

    name: str
    options: type[QuantizeConfig]
    distributions: tuple[str, ...] = ("executorch", "torch", "torchao")
    make_quantizer: Callable[[Any], Quantizer | None] = lambda options: None
    apply_quantizer: Callable[[GraphModule, Any, Sequence[tuple[Any, ...]]], GraphModule] | None = (
        None
    )
    rewrite: Callable[[ExportedProgram, Any], GraphModule] | None = None
    requirements: tuple[Requirement, ...] = ()
    facts: Callable[[], Mapping[str, str]] | None = None

    def missing(self) -> Iterator[Requirement]:
        """What must be installed before anything can be quantized with it."""
        return (each for each in self.requirements if not each.there())
