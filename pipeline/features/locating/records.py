"""The shape of the causes that locating adds to a failed method's record."""

from __future__ import annotations

from typing import Literal

# Python 3.11's TypedDict doesn't give pydantic everything that it needs for a schema.
from typing_extensions import NotRequired, TypedDict  # noqa: UP035

from pipeline.report.method_records import OutputErrorRecord

# The kind of fault: an operator or a delegate computes the wrong values, the package differs from
# its build's result, state is not kept, or inputs or outputs have another order or other names.
CulpritKind = Literal["operator", "delegate", "state"]


class CulpritRecord(TypedDict):
    """The cause of a failure: an operator (with its delegate, if any), a delegate, or state.

    `line` is the `file:line` in the model's source at export time; `kernel` is the kernel of an
    operator outside delegates, such as `aten::add.out`; `what` is a sentence.
    """

    operator: str
    module: str
    line: str
    backend: str | None
    partition: int | None
    kernel: NotRequired[str]
    kind: CulpritKind
    what: str
    error: OutputErrorRecord | None


CULPRITS = list[CulpritRecord]
CULPRIT_NOTES = list[str]
