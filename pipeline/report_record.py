"""The records of a report, as they stand in JSON."""

from __future__ import annotations

# Python 3.11's own TypedDict does not tell pydantic all that it needs for a schema.
from typing_extensions import TypedDict


class SegmentRecord(TypedDict):
    """A stretch of a file; those of a file cover it, in order, from its first byte to its last.

    `kind` is program (the flatbuffer with its header: plans, and where everything stands),
    constants (tensors of portable operators), delegate (a payload), named_data (what delegates or
    a `.ptd` file hold by name), mutable (initial values of buffers) or padding. `name` is the
    qualified name of a tensor of named data, else its key. `backend` is that of a payload.
    `methods` are those that use it; empty where nothing tells. `digest` is empty for padding.
    """

    file: str
    kind: str
    name: str
    offset: int
    size: int
    digest: str
    methods: list[str]
    backend: str | None


class DelegateBlob(TypedDict):
    """`index` is the delegate's place in its method, `size` that of its payload in bytes."""

    backend: str
    index: int
    size: int
    digest: str


class ArenaRecord(TypedDict):
    """A block of memory that the runtime gives to a method's tensors, in bytes."""

    arena: int
    size: int


class MethodContents(TypedDict):
    """`constants` are bytes of tensors of portable operators, `delegated` bytes of payloads and of
    delegates' named data; what methods share counts for each."""

    instructions: int
    delegates: list[DelegateBlob]
    planned_memory: list[ArenaRecord]
    constants: int
    delegated: int


class TensorRecord(TypedDict):
    """`name` is empty where the bytes are none that the programs hold; `key` is that of named data.

    dtype, shape and `size` are as stored, but for `where` delegate: a tensor that went into a
    payload, whose form there nobody knows, has those of the program. Named data whose bytes are
    a weight in another layout have the program's dtype and shape.
    """

    name: str
    key: str
    dtype: str
    shape: list[int]
    size: int
    file: str
    where: str
    methods: list[str]


class SharedRecord(TypedDict):
    """What several methods use and the package holds once."""

    what: str
    size: int
    methods: list[str]


class TwiceRecord(TypedDict):
    """What stands at several places: `size` bytes at each of `times`. `advice` says how to be rid
    of it."""

    what: str
    size: int
    times: int
    where: list[str]
    advice: str


class ContentsRecord(TypedDict):
    """What is in a package: a function of the bytes of its files, and of the names of constants in
    the programs. `tensors`, `shared` and `twice` have the largest first."""

    size: int
    segments: list[SegmentRecord]
    methods: dict[str, MethodContents]
    tensors: list[TensorRecord]
    shared: list[SharedRecord]
    twice: list[TwiceRecord]


class SpreadRecord(TypedDict):
    """Of `runs` figures in milliseconds; `low` and `high` are the quartiles."""

    median: float
    low: float
    high: float
    runs: int


class LatencyRecord(TypedDict):
    """How long a method takes on the machine that validated it, from Python, on its first input
    set. Not reproducible. `ratio` is the median of the steady runs over that of the source program
    in eager mode."""

    load_ms: SpreadRecord
    first_ms: float
    steady_ms: SpreadRecord
    source_ms: SpreadRecord
    ratio: float


class LeftOutRecord(TypedDict):
    """A case that is not in the bundled program, and why; `origin` is empty for all of a method."""

    origin: str
    reason: str


class SuiteRecord(TypedDict):
    """A method in the bundled program: where the inputs of each case are from, in the order of
    their numbers; the tolerances to give the runtime; the state that a case wants in its initial
    values, so that the method is loaded anew for it."""

    cases: list[str]
    rtol: float
    atol: float
    state: list[str]
    left_out: list[LeftOutRecord]


class BundleRecord(TypedDict):
    """`bundle` in `report.json`, where one was wanted and the package is what its source is."""

    file: str
    size: int
    digest: str
    methods: dict[str, SuiteRecord]
