"""The signatures of packages without a manifest, made from the declarations in the `.pte`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pipeline.features.loading.method_spec import MethodSpec
from pipeline.program.argument_specs import Argument, Extent, Leaf, TensorSpec


def make_flat_spec(inputs: Sequence[Any], outputs: Sequence[Any]) -> MethodSpec:
    """Return a method's signature, made from the inputs and outputs that the `.pte` declares.

    Arguments are positional and unnamed, and accept any size up to the declared one. Outputs are a
    tuple.
    """

    def leaf(declared: Any) -> Leaf | None:
        if declared is None or declared.dtype is None:
            return None
        sizes = tuple(Extent(None, 0, size) for size in declared.sizes)
        return TensorSpec(declared.dtype, sizes, tuple(range(len(sizes))))

    arguments = []
    for number, declared in enumerate(inputs):
        name = f"args[{number}]"
        arguments.append((name, Argument(name, leaf(declared))))
    returned = []
    for number, declared in enumerate(outputs):
        returned.append(Argument(f"output[{number}]", leaf(declared)))
    return MethodSpec(tuple(arguments), (), tuple(returned))
