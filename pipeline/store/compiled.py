"""The records of compiled methods: objects, delegation, and further facts about each method.

Workers make them, the store checks them against these declarations, and manifests and reports hold
them. A program's nodes are identified by their places (`program.graphs.NodePlaces`); the report
adds their source lines.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_type_hints

from pipeline.store.digest import Digest
from pipeline.store.forms import Count, FileName, MethodName, Size
from pipeline.store.quantized import QUANTIZATION_FACTS


@dataclass(frozen=True)
class Blob:
    """A blob of the store: its content digest and its size in bytes."""

    digest: Digest
    size: Size


@dataclass(frozen=True)
class NamedBlob:
    """An entry of a delegate's named data; `layout` is (scalar type, sizes, dim order) or None."""

    key: str
    blob: Blob
    alignment: Count
    layout: tuple[Count, list[Count], list[Count]] | None


# A blob and the tag of its `.ptd` file, or None if it is in the `.pte`
TaggedBlob = tuple[str | None, NamedBlob]


@dataclass(frozen=True)
class MethodObject:
    """A compiled unit: a method, or a group of methods compiled jointly.

    `constants` and `mutable` have the reserved empty entry at index 0, like those of ExecuTorch's
    emitter; indices in the program's plans refer to these tuples. `external` maps a tag, which
    names a `.ptd` file, to (fully qualified name, index into `external_constants`) pairs. If the
    unit has several methods, `keys` holds the keys of each method's named data, in order.
    """

    program: Blob
    constants: tuple[Blob, ...]
    mutable: tuple[Blob, ...]
    delegates: tuple[Blob, ...]
    external_constants: tuple[Blob, ...]
    external: Mapping[FileName, tuple[tuple[str, Count], ...]]
    named: tuple[NamedBlob, ...]
    named_external: Mapping[FileName, tuple[NamedBlob, ...]] = field(
        default_factory=dict
    )
    keys: Mapping[MethodName, tuple[str, ...]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def tagged(self) -> Iterator[TaggedBlob]:
        """Yield all named data, each entry with its tag."""
        for tag, entries in ((None, self.named), *self.named_external.items()):
            yield from ((tag, entry) for entry in entries)

    def blobs(self) -> Iterator[Blob]:
        """Yield every blob that linking reads."""
        yield self.program
        for group in (
            self.constants,
            self.mutable,
            self.delegates,
            self.external_constants,
        ):
            yield from group
        yield from (entry.blob for _, entry in self.tagged())


# The reason of a backend that takes only quantized operators.
NOT_QUANTIZED = "not quantized"


@dataclass(frozen=True)
class Estimate:
    """A delegate's performance estimate, as reported by the tool that compiled it, such as "vela".

    The outline of a `DELEGATION` documents the fields.
    """

    tool: str
    clock: Count
    cycles: Count
    busy_cycles: Count
    macs: Count
    sram: Count
    dram: Count
    on_chip_flash: Count
    off_chip_flash: Count


_CROSSING = {"tensors": Count, "bytes": Count}
_BOUNDARY = (
    {"into": _CROSSING, "out_of": _CROSSING, "copies": Count},
    "The tensors that enter and leave delegates in one call, and their bytes at the upper bounds",
    "of dynamic sizes; `copies` counts changes of layout or dtype that remain at the boundaries.",
)
_SEGMENT = (
    {"backend": (str, None), "nodes": Count, "operators": dict[str, Count]},
    "A segment of a lowered method: a delegate of `backend` or, if that is null, the calls between",
    "two delegates. Bodies of control flow are listed where they are called.",
)
_UNDELEGATED_CALL = (
    {
        "operator": str,
        "place?": (Count, None),
        "line?": str,
        "module": str,
        "reason": str,
    },
    "A call of an operator that no delegate took: its module, the reason (if known) and its",
    "`place` in the source program, which is null if lowering or quantization added the call.",
    "Reports also have its source `line`.",
)
_BACKEND_COUNTS = (
    {"nodes": Count, "operators": Count, "partitions": Count},
    "The numbers of operator calls, of distinct operators and of delegates of one backend.",
)
_DELEGATE_ESTIMATE = (
    {"backend": str, **get_type_hints(Estimate, include_extras=True)},
    "An estimate for one call of a delegate, from the tool that compiled it: the device's `clock`",
    "in Hz; `cycles` of the whole call, including waits for memory; `busy_cycles` of computation;",
    "`macs`, the multiply-accumulates; and the peak bytes in use, by kind of memory.",
)
_UPTAKE = (
    {
        "partitioner": str,
        "offered": Count,
        "taken": Count,
        "refusals": (
            [{"operator": str, "calls": Count, "reason": str}],
            "If the partitioner took no call: the operators that it left most often, each with the",
            "number of calls and the reason, if known.",
        ),
    },
    "The number of operator calls that a partitioner was offered, after the partitioners before",
    "it, and the number that it took. Calls that only move values, such as views, count only if",
    "nothing else was offered, since a delegate of views alone speeds nothing up.",
)
# Counts of operator calls, including those in control flow. The optional fields may be absent from
# manifests and reports of older versions. A result of this version has every field except `kernels`
# and `estimates`, which are omitted if empty, and `boundary`, which a feature measures.
DELEGATION: Mapping[str, Any] = {
    "nodes": Count,
    "delegated_nodes": Count,
    "operators": Count,
    "delegated_operators": Count,
    "partitions": dict[str, Count],
    "undelegated": (dict[str, Count], "The number of undelegated calls, by operator."),
    "kernels?": dict[str, dict[str, Count]],
    "backends?": {str: _BACKEND_COUNTS},
    "subgraphs?": Count,
    "left?": [_UNDELEGATED_CALL],
    "boundary?": _BOUNDARY,
    "segments?": [_SEGMENT],
    "estimates?": (
        [_DELEGATE_ESTIMATE],
        "The estimates for delegates whose compiler makes one. A delegate in control flow counts",
        "once.",
    ),
    "partitioners?": ([_UPTAKE], "The config's partitioners, in its order."),
}


@dataclass(frozen=True)
class DelegateNodes:
    """The nodes that one delegate call runs; `index` is the call's instruction.

    `places` are the places of these nodes, sorted. `outputs` are the places of the nodes whose
    values the call returns, in the order of its outputs, with None for a node that lowering made.
    """

    index: Count
    places: tuple[Count, ...]
    outputs: tuple[Count | None, ...]


@dataclass(frozen=True)
class Instructions:
    """The instructions of a method.

    Attributes:
        nodes: the chain and the index of an instruction, and the place of the node that it belongs
            to. A node may become several instructions, the last of which yields its value.
        delegates: the delegate calls, in the order of their instructions.
        state: (qualified name of a buffer that the method mutates, its value in the plan).
    """

    nodes: tuple[tuple[Count, Count, Count], ...] = ()
    delegates: tuple[DelegateNodes, ...] = ()
    state: tuple[tuple[str, Count], ...] = ()

    @property
    def node_places(self) -> dict[int, int]:
        """The place of each node outside delegates, by the index of its instruction."""
        return {index: place for _, index, place in self.nodes}

    @property
    def places(self) -> dict[int, int]:
        """The same places and, for each delegate call, the last place that it runs."""
        inside = {call.index: call.places[-1] for call in self.delegates if call.places}
        return {**self.node_places, **inside}


# A library of operators other than ATen's that methods call outside delegates.
OPERATOR_LIBRARY: Mapping[str, Any] = {
    "name": str,
    "digest?": (Digest, "The digest of a library in the workspace."),
    "version?": (str, "The version of an installed library."),
    "operators": (
        list[str],
        "The operators whose kernels an app that runs `methods` must link.",
    ),
    "kernels": (
        list[str],
        "The operators for which ExecuTorch's runtime had kernels when the method was compiled.",
    ),
    "methods?": list[str],  # of a package's libraries
}


_PLACE = (Count, None, "The operator's place in the source program.")
_LINE = (str, "The operator's source line; only in reports.")
_RANGE = tuple[Count, Count | None]
NARROWED_SIZE = (
    {
        "size": (str, "The name of the size, such as `x.shape[2]`."),
        "source": _RANGE,
        "lowered": _RANGE,
        "operator": (str, 'The operator that narrowed the range; "" if unknown.'),
        "module": str,
        "place?": _PLACE,
        "line?": _LINE,
    },
    "An input size that was lowered for a smaller range than the source accepts. Both ranges are",
    "pairs of the minimum and the maximum; null means no limit.",
)
LOWERING_WARNING = (
    {
        "what": str,
        "operator": (str, 'The operator concerned; "" for the whole method.'),
        "module": str,
        "place?": _PLACE,
        "line?": _LINE,
    },
    "A warning from lowering a method.",
)
# The facts of a compiled method that the manifest of its package also holds.
METHOD_FACTS: Mapping[str, Any] = {
    # In the form that `program.recorded_signature` returns.
    "signature": {
        "args": list[tuple[str, Any]],
        "kwargs": list[tuple[str, Any]],
        "outputs": Any,
        "changes": list[Count],
    },
    # Which instruction computes which node of the program that was lowered: the quantized program,
    # if there is one.
    "instructions": Instructions,
    # The debug handles in delegates that run in Python, each with the place of its node in the
    # source program rather than its line, which may change although the program doesn't.
    "debug_handles": list[tuple[Count, Count]],
    # The number of operators in control flow of a quantized method that are not quantized.
    "left_float": Count,
    "narrowed?": [NARROWED_SIZE],
    # Names in the list of an option, such as `vulkan.nn_module_blocklist`; if a name isn't found,
    # `hint` suggests a correct one.
    "listed": [{"option": str, "name": str, "found": bool, "hint": str}],
    "warnings": [LOWERING_WARNING],
    # Facts of features that have no field here, by name.
    "facts?": dict[str, Any],
}
# The constants of a method. `tensors` maps the digest of a tensor's logical bytes to its qualified
# names, dtype, shape, size in bytes, and the digests of other forms that it may be stored in.
# `consumed` maps the digest of a delegate's payload to the numbers of the tensors that it consumed.
_CONSTANTS = {
    "tensors": {
        Digest: {
            "names": list[str],
            "dtype": str,
            "shape": list[Count],
            "size": Count,
            # A mapping, because digests among a result's values would be taken for blobs.
            "forms": dict[Digest, Literal[1]],
        }
    },
    "consumed": dict[Digest, list[Count]],
}
COMPILED_METHOD: Mapping[str, Any] = {
    **METHOD_FACTS,
    "delegation": DELEGATION,
    "quantization": (QUANTIZATION_FACTS, None),
    "operators": [OPERATOR_LIBRARY],
    "constants": _CONSTANTS,
}
