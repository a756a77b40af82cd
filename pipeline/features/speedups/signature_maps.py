"""The maps of an `ExportGraphSignature`, kept until a spec changes.

torch makes a map from all specs each time that one is asked for, and memory planning, emission and
`is_param_node` ask for every node: a method with 2,000 constants spends most of its time there.

Specs can be changed in place, and `replace_all_uses` does that. Setting an attribute of any spec,
argument or signature therefore discards what is kept for all signatures, and so does making a new
one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from weakref import ref

from torch.export import graph_signature
from torch.export.graph_signature import ExportGraphSignature

# The maps by the list of specs that they are made from, each with the digest of its source code.
SOURCES = {
    "input_specs": {
        "inputs_to_parameters": "906fbe23f39d131e4a264a03dee309beddb683836816c6cce070c7953bdf795f",
        "inputs_to_buffers": "f786dffa4340407038f8fe122035dac2247d2ecedddc42b4af654c8468f85143",
        "inputs_to_lifted_tensor_constants": (
            "a7d3ab4197d2152ee3db8846a5e70004243833d32f9a454ec5c042cb19bb001f"
        ),
        "inputs_to_lifted_custom_objs": (
            "7ae3111125d94847461a363ccb4b85d710278b72d324d9f19389af59e3a1387c"
        ),
    },
    "output_specs": {
        "buffers_to_mutate": "c4e851bff5cf86833ee7accc172afd9b4875610dd396594977ed4705394a0b3a",
        "parameters_to_mutate": "ab900dd5e561883f5f5c850de6845fe05972ff30a12a16d6998a57761e0308c4",
        "user_inputs_to_mutate": "1de5e2a96f804d9fce09c728392a05944b04fd7bc6943508cb2ac2d9e3440265",
    },
}
# The classes whose attributes the maps are made from.
_MUTABLE = (
    ExportGraphSignature,
    graph_signature.InputSpec,
    graph_signature.OutputSpec,
    graph_signature.TensorArgument,
    graph_signature.CustomObjArgument,
)


_Owner = Callable[[], ExportGraphSignature | None]
# A reference to a signature, the specs that a map was made from, the number of changes at that
# time, and the map.
_KeptMap = tuple[_Owner, list[Any], int, Mapping[str, str]]


class _Maps:
    """The kept maps of signatures, and the number of changes to specs within a context."""

    def __init__(self) -> None:
        self.is_open = False
        self.changes = 0
        self.kept: dict[tuple[int, str], _KeptMap] = {}


_maps = _Maps()


@contextmanager
def counted_changes() -> Iterator[None]:
    """Keep maps within the context, and count all changes to specs."""

    def set_attribute(self: Any, name: str, value: Any) -> None:
        _maps.changes += 1
        object.__setattr__(self, name, value)

    for kind in _MUTABLE:
        kind.__setattr__ = set_attribute  # type: ignore[assignment, method-assign]
    _maps.is_open = True
    try:
        yield
    finally:
        _maps.is_open = False
        _maps.kept.clear()
        for kind in _MUTABLE:
            del kind.__setattr__


def make_kept(list_name: str) -> Callable[[property], property]:
    """Return a patch that makes a property keep its map, which is made from a list of specs."""

    def make(original: property) -> property:
        get = original.fget
        assert get is not None
        map_name = get.__name__

        def get_kept(self: ExportGraphSignature) -> Mapping[str, str]:
            if not _maps.is_open:
                return get(self)  # type: ignore[no-any-return]
            specs = getattr(self, list_name)
            place = id(self), map_name
            if place in _maps.kept:
                owner, kept_specs, changes, names = _maps.kept[place]
                # Comparing specs is quick if they are the same objects.
                is_same = changes == _maps.changes and kept_specs == specs
                if is_same and owner() is self:
                    return names
            _maps.kept[place] = (ref(self), list(specs), _maps.changes, get(self))
            return _maps.kept[place][-1]

        return property(get_kept)

    return make
