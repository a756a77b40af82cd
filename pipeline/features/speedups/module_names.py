"""Patches of how torch finds a module by its name, and the name of a module.

For each weight or partition torch looks through all modules, so the work grows with the square of
their number.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

from executorch.exir.lowered_backend_module import LoweredBackendModule
from executorch.exir.pass_base import _ExportPassBase
from torch.export.unflatten import _assign_attr, _is_call_name
from torch.fx import Node, Tracer
from torch.fx.experimental.proxy_tensor import PythonKeyTracer
from torch.nn import Module

# The functions by which torch finds the modules that a weight belongs to.
ASSIGNING = (_assign_attr, _is_call_name)
# The functions by which a pass finds the name of a module.
TRACING = (
    _ExportPassBase.ExportTracer.create_arg,
    PythonKeyTracer.create_arg,
    Tracer.create_arg,
    Module.named_modules,
)
_get_children = attrgetter("_modules")


def make_assign(original: Callable[..., None]) -> Callable[..., None]:
    """Return an `_assign_attr` that looks each module up by its name.

    torch compares the name of each sibling by a regular expression, since it may be another call of
    the same module: `layer@1` for `layer`. An exported program is unlifted weight by weight, and
    its modules have no such siblings.
    """

    def assign(
        from_obj: Any,
        to_module: Module,
        target: str,
        attr_kind: Any,
        persistent: bool = True,
    ) -> None:
        *names, field = target.split(".")
        module = to_module
        for name in names:
            if not hasattr(module, name):
                setattr(module, name, Module())
            child = module._modules.get(name)
            siblings = "".join(module._modules)
            # The expression also allows a newline after a name.
            if child is None or "@" in siblings or "\n" in siblings:
                return original(from_obj, to_module, target, attr_kind, persistent)
            module = child
        return original(from_obj, module, field, attr_kind, persistent)

    return assign


def make_argument(original: Callable[..., Node]) -> Callable[..., Node]:
    """Return an `ExportTracer.create_arg` that uses the name that the tracer gave to a partition.

    The original searches for a module that has just been named among all modules.
    """

    def create_argument(self: Any, a: Any) -> Node:
        is_partition = type(a) is LoweredBackendModule
        name = self.submodules.get(a) if is_partition else None
        # Within another module, the same partition could be found first.
        if name is None or any(map(_get_children, self.root._modules.values())):
            return original(self, a)
        node: Node = self.create_node("get_attr", name, (), {})
        return node

    return create_argument
