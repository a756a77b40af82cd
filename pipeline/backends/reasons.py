"""Collects the reasons why partitioners leave nodes, for the families' `Lowering.reasons`.

Partitioners log, print or store their findings, so their functions are wrapped; their choices stay
the same. A reason continues "it is left because" in a few words, the partitioner's own if it gives
any.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from pipeline.backends.entry import Reasons, Why
from pipeline.program.patching import wrapped

if TYPE_CHECKING:
    from executorch.exir.backend.partitioner import Partitioner
    from torch.export import ExportedProgram
    from torch.fx import Node

NOT_OF_THIS_TYPE = "its partitioner doesn't support operators of this type"


def reported_by(target: str, method: str) -> Reasons:
    """Return a function for `Lowering.reasons` that collects the arguments of a method's calls.

    Args:
        target: the method's class, as `module:Class`; imported when the function is called.
        method: takes a node and a reason. A node's first reason counts, since it is the closest to
            the cause.
    """

    @contextmanager
    def reasons(partitioner: Partitioner, program: ExportedProgram) -> Iterator[Why]:
        why: Why = {}

        def listen(
            original: Callable[..., Any], reporter: Any, node: Node, reason: str
        ) -> None:
            why.setdefault(node, reason)
            original(reporter, node, reason)

        with wrapped(resolve_name(target), method, listen):
            yield why

    return reasons
