"""The records of a report, as they stand in its JSON."""

from __future__ import annotations

from typing import Any, TypedDict


class Culprit(TypedDict):
    """Where a method goes wrong.

    `operator` is that of the node of the source program whose value departs first, "" where it is
    none; `module` the qualified name of its module, `line` its line in the model's source. In a
    delegate, `backend` is its id and `partition` its number among the delegates of the method.
    `kind` is what is wrong: an `operator` or a `delegate` computes something else, the `package` is
    not what its build gives, the `state` is not kept, or what is there stands in another place or
    under another name (`order`). `what` says it in a sentence; `error` is that of the first value
    that departs, as `OutputError.to_json` gives it.
    """

    operator: str
    module: str
    line: str
    backend: str | None
    partition: int | None
    kind: str
    what: str
    error: dict[str, Any] | None
