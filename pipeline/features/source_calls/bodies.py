"""Records which bodies of a source's control flow a call runs, and reports them in its place.

Other features watch bodies with hooks, for example to find a branch of a `torch.cond` that no call
takes. For a call that isn't made, the hooks of the bodies that it would run are called.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from torch.fx import GraphModule

from pipeline.program.eager import Source


class Bodies:
    """The branches and bodies of a source's control flow at any depth, by their module's name."""

    def __init__(self, source: Source) -> None:
        self._bodies: dict[str, GraphModule] = {}
        for name, module in source.module.named_modules():
            if name and isinstance(module, GraphModule):
                self._bodies[name] = module

    @contextmanager
    def recording(self) -> Iterator[dict[str, None]]:
        """Yield the names of the bodies that run within the block, in order of their first run.

        Runs with rounded values call no modules, so they record nothing.
        """
        ran: dict[str, None] = {}
        with ExitStack() as stack:
            for name, body in self._bodies.items():
                note = partial(_note, ran, name)
                stack.callback(body.register_forward_pre_hook(note).remove)
            yield ran

    def can_report(self, names: Collection[str]) -> bool:
        """Return whether these bodies exist, and their watchers need no values of the call."""
        return self._bodies.keys() >= {*names} and not any(
            body._forward_hooks or body._forward_pre_hooks_with_kwargs
            for body in self._bodies.values()
        )

    def report(self, names: Collection[str]) -> None:
        """Call the hooks of bodies as if they ran, but without values."""
        for name in names:
            body = self._bodies[name]
            for hook in [*body._forward_pre_hooks.values()]:
                # A hook that reads the body's inputs must fail rather than miss them.
                hook(body, None)


def _note(ran: dict[str, None], name: str, body: Any, inputs: Any) -> None:
    ran[name] = None
