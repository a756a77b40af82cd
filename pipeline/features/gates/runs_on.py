"""Checks a package's contract against the runtime of a target.

Each need that the runtime does not meet becomes a sentence: the operator, dtype, backend or size,
the source line that requires it, and the option that avoids it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import cached_property
from itertools import islice
from typing import Any

from pipeline.backends import BACKENDS
from pipeline.moments import call_all
from pipeline.store.errors import did_you_mean, listed

Json = Mapping[str, Any]
_ALL_ARENAS = "0"  # in the memory of a target
_MOST = 5  # needs to name in a sentence
_MOST_OPTIONS = 2  # ways to avoid an operator, the surest first
_MOST_LINES = 2  # per operator
_OLDER = "lower it with the executorch of that runtime"
_ALIGNED_BY = {
    "segments": "emit.layout.segment_alignment",
    "constants": "emit.layout.constant_tensor_alignment",
    "payloads": "emit.layout.delegate_alignment",
    "planned_memory": "emit.memory_planning.alignment",
}


class Runtime:
    """The runtime of a target: its name and its resolved description (`targets/<name>.yaml`)."""

    def __init__(self, name: str, facts: Json) -> None:
        self.name = name
        self.facts = facts

    @cached_property
    def _listed(self) -> dict[str, Any]:
        return dict(self.facts["operators"])

    def has(self, operator: str) -> bool:
        """Return whether it has a kernel of an operator, for at least some dtypes."""
        if self._key(operator) in self._listed:
            return True
        return _find_library(operator) in ("prim", *self.facts["kernels"])

    def dtypes(self, operator: str) -> Collection[str] | None:
        """Return the dtypes of its kernels of an operator, or None for all."""
        if _find_library(operator) == "prim":
            return None
        listed_dtypes: Collection[str] | None = self._listed.get(self._key(operator))
        if listed_dtypes is None:
            return self.facts["dtypes"]
        return listed_dtypes

    def _key(self, operator: str) -> str:
        if operator in self._listed:
            return operator
        # A target may name a whole namespace.
        return f"{operator.partition('::')[0]}::*"

    def describe_near(self, operator: str) -> str:
        """Return a hint at a similarly named operator that the runtime has, or "".

        Namespaces of ExecuTorch and ATen need none, since a target file with a wrong name of theirs
        is refused.
        """
        namespace = operator.partition("::")[0]
        if any(namespace in names for names in call_all("kernel_namespaces")):
            return ""
        near = did_you_mean(operator, self._listed, 0)
        if near.startswith("did you mean"):
            return near.partition("?")[0]
        return ""


def _find_library(operator: str) -> str | None:
    """Return the name of ExecuTorch's kernel library with an operator, or None if none has it."""
    return next(call_all("find_kernel_library", operator), None)


class Method:
    """A method: its facts in the manifest, its contract, and the calls that no delegate took.

    The calls have their lines from the report.
    """

    def __init__(
        self, package: str, facts: Json, contract: Json, left: tuple[Json, ...] = ()
    ) -> None:
        self.package = package
        self.facts = facts
        self.contract = contract
        self.left = left

    def describe_calls(self, operator: str, instructions: Collection[int]) -> str:
        """Return the source lines of instructions, or the next best location."""
        calls = self._exact(instructions) or self._by_name(operator)
        lines = dict.fromkeys(call["line"] for call in calls if call.get("line"))
        if lines:
            return f"for {listed(map('`{}`'.format, lines), _MOST_LINES)}"
        modules = dict.fromkeys(call["module"] for call in calls if call.get("module"))
        if modules:
            return f"in {listed(modules, _MOST_LINES)}"
        return "which lowering put there"

    def reason(self, operator: str, instructions: Collection[int]) -> str:
        """Return why no delegate took the calls, if a partitioner gave a reason, or ""."""
        calls = self._exact(instructions) or self._by_name(operator)
        return next((call["reason"] for call in calls if call.get("reason")), "")

    def _exact(self, instructions: Collection[int]) -> list[Json]:
        # A quantized method's instructions have places in its quantized program.
        traced = None
        if self.facts.get("quantized") is None:
            traced = self.facts.get("instructions")
        places = {index: place for _, index, place in (traced or {}).get("nodes", ())}
        wanted_places = {places[index] for index in instructions if index in places}
        raw = self.facts["delegation"].get("left", ())
        # They are paired by position, which means nothing if the lengths differ.
        if len(raw) != len(self.left):
            return []
        return [
            call
            for call, raw_call in zip(self.left, raw, strict=True)
            if raw_call["place"] in wanted_places
        ]

    def _by_name(self, operator: str) -> list[Json]:
        base = _base(operator)
        return [call for call in self.left if _base(call["operator"]) == base]


def _base(operator: str) -> str:
    """Return an operator without its overload: `aten.add` for aten::add.out and aten.add.Tensor."""
    return ".".join(operator.replace("::", ".").split(".")[:2])


def measure_misfits(
    package: str,
    contract: Json | None,
    runtimes: Iterable[Runtime],
    find: Callable[[Runtime], Iterable[str]],
) -> tuple[float | None, str]:
    """Return the number of needs that runtimes do not meet, and a sentence on them, by target.

    The number is None if the contract is unknown.
    """
    if contract is None:
        return None, (
            "its requirements for a runtime are unknown, since there is no contract.json; "
            f"`doit -a lower:{package}` makes it"
        )
    count = 0
    sentences = []
    # Gates of several methods may name the same target.
    for runtime in {runtime.name: runtime for runtime in runtimes}.values():
        misfits = list(find(runtime))
        count += len(misfits)
        if misfits:
            sentence = f"the runtime of {runtime.name} {'; it '.join(misfits[:_MOST])}"
            if len(misfits) > _MOST:
                sentence += f"; and {len(misfits) - _MOST} more"
            sentences.append(sentence)
    return count, ". And ".join(sentences)


def find_package_misfits(contract: Json, runtime: Runtime) -> Iterator[str]:
    """Yield the package's own needs that a runtime does not meet: schema, release, alignment."""
    limits = runtime.facts
    for schema in contract["schemas"]:
        identifier = schema["identifier"]
        if limits["identifier"] not in (None, identifier):
            yield f"reads {limits['identifier']}, but the package is {identifier}; {_OLDER}"
        if (
            limits["schema_version"] is not None
            and schema["version"] > limits["schema_version"]
        ):
            yield (
                f"reads schema version {limits['schema_version']}, but the package has "
                f"{schema['version']}; {_OLDER}"
            )
    for release in contract["executorch"]:
        # Patch releases are assumed to read each other's files.
        if limits["executorch"] and _minor(release) > _minor(limits["executorch"]):
            yield (
                f"has executorch {limits['executorch']}, but the package was made by {release} "
                f"and may contain features that it does not know; {_OLDER}"
            )
    for part, needed in limits["alignment"].items():
        alignment = contract["alignment"][part]
        if alignment is not None and alignment < needed:
            yield (
                f"needs {part.replace('_', ' ')} aligned to {needed} bytes, but the package's "
                f"are aligned to {alignment}; set `{_ALIGNED_BY[part]}: {needed}`"
            )


def _minor(release: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", release)[:2]))


def find_method_misfits(method: Method, runtime: Runtime) -> Iterator[str]:
    """Yield the operators, dtypes, backends and memory that a method needs and a runtime lacks."""
    yield from _missing_kernels(method, runtime)
    for backend in method.contract["backends"]:
        if backend not in runtime.facts["backends"]:
            names = [
                name for name, entry in BACKENDS.items() if entry.backend_id == backend
            ]
            name = next(iter(names), backend)
            calls = method.facts["delegation"]["partitions"].get(backend, 0)
            yield (
                f"lacks {backend}, which runs {calls} of its partitions; take {name} out of "
                f"`partitioners`, or link the backend (`doit contract {method.package}` shows how)"
            )
    yield from _lacking_memory(method, runtime)


def _missing_kernels(method: Method, runtime: Runtime) -> Iterator[str]:
    calls: dict[tuple[str, str], list[int]] = {}
    for kernel in method.contract["kernels"]:
        operator = kernel["operator"]
        if not runtime.has(operator):
            calls.setdefault((operator, ""), []).extend(kernel["instructions"])
            continue
        dtypes = runtime.dtypes(operator)
        for dtype in dict.fromkeys(filter(None, kernel["arguments"])):
            if dtypes is not None and dtype not in dtypes:
                calls.setdefault((operator, dtype), []).extend(kernel["instructions"])
    for (operator, dtype), instructions in calls.items():
        where = method.describe_calls(operator, instructions)
        advice = _advise(
            method, runtime, operator, method.reason(operator, instructions)
        )
        if dtype:
            has = listed(runtime.dtypes(operator) or ())
            yield f"lacks {operator} for {dtype}, {where}, but has it for {has}; {advice}"
            continue
        near = runtime.describe_near(operator)
        hint = f" ({near}?)" if near else ""
        yield f"lacks {operator}, {where}{hint}; {advice}"


def _lacking_memory(method: Method, runtime: Runtime) -> Iterator[str]:
    memory = runtime.facts["memory"]
    arenas = method.contract["planned_memory"]
    advice = "another `emit.memory_planning.algorithm`"
    if _has_dynamic_sizes(method.facts.get("signature")):
        advice = f"smaller upper bounds of dynamic sizes, or {advice}"
    if _ALL_ARENAS in memory:
        planned = sum(arena["size"] for arena in arenas)
        available = memory[_ALL_ARENAS]
        if planned > available:
            yield f"has {available:,} bytes of memory, but it plans {planned:,}; try {advice}"
    elif memory:
        for arena in arenas:
            name, size = arena["arena"], arena["size"]
            available = memory.get(str(name))
            if available is None and size:
                yield f"has no arena {name}, in which it plans {size:,} bytes"
            elif available is not None and size > available:
                yield (
                    f"has {available:,} bytes in arena {name}, but it plans {size:,}; try {advice}"
                )


def _has_dynamic_sizes(signature: Any) -> bool:
    """Return whether a part of a method's signature (`MethodSpec`, as JSON) has dynamic sizes."""
    if isinstance(signature, dict):
        values = list(signature.values())
        return "max" in signature or any(map(_has_dynamic_sizes, values))
    return isinstance(signature, list) and any(map(_has_dynamic_sizes, signature))


def _advise(method: Method, runtime: Runtime, operator: str, reason: str) -> str:
    """Return why a method calls an operator, the options against it, and how a runtime gets it."""
    why = f"not delegated ({reason}); " if reason else ""
    options = islice(
        _find_options(method.facts["lowering"], runtime, operator), _MOST_OPTIONS
    )
    link = f"build the runtime with it (`doit contract {method.package}` shows how)"
    if _find_library(operator) is None:
        link = "link a kernel of your own, since ExecuTorch has none"
    return why + ", or ".join([*options, link])


def _find_options(lowering: Json, runtime: Runtime, operator: str) -> Iterator[str]:
    """Yield the config options that keep an operator out of a method's plan, the surest first."""
    edge = lowering.get("edge") or {}
    namespace = operator.partition("::")[0]
    base = _base(operator)
    for name in edge.get("preserve_ops") or ():
        if _base(name) == base:
            yield f"leave {name} out of `edge.preserve_ops`, so that it is decomposed"
    if namespace == "dim_order_ops":
        yield "set `edge: {skip_dim_order: true}`, so that ATen's copies replace it"
    if namespace == "et_copy":
        yield "set `emit: {propagate_device: ...}`, so that values stay on the device"
    if namespace == "quantized_decomposed" and lowering.get("quantize"):
        yield "delegate what is on both sides of it, or leave `quantize` out"
    partitioners = lowering.get("partitioners") or ()
    used = {partitioner["name"] for partitioner in partitioners}
    if lowering.get("modules") or any(p.get("modules") for p in partitioners):
        yield "add its module to `modules`, so that it can be delegated"
    if namespace == "aten":
        offered = _find_offered(runtime, used)
        if offered:
            yield f"delegate it: {runtime.name} has {listed(offered, 3)} for `partitioners`"
        yield "rewrite it in a pass of `edge.passes`"


def _find_offered(runtime: Runtime, used: Collection[str]) -> list[str]:
    """Return the partitioners that a method does not use although a runtime has their backend."""
    offered = []
    for name, entry in BACKENDS.items():
        if name in used or entry.lowering.make_partitioner is None:
            continue
        if entry.backend_id in runtime.facts["backends"]:
            offered.append(name)
    return offered
