"""The maps of an `ExportGraphSignature`, kept until a spec changes.

torch makes a map of all specs each time one is requested, and memory planning, emission and
`is_param_node` request one for every node: a method with 2,000 constants spends most of its time
there.

Specs can be changed in place, and `replace_all_uses` does that. Setting an attribute of a spec or
of its argument therefore discards the maps that were made from it. After any other change,
including the creation of a spec, the specs of a kept map are only compared again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from operator import is_
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
# The address of a signature, and the name of one of its maps.
_Place = tuple[int, str]


# A reference to a signature, the specs that a map was made from, the number of changes when these
# were last seen to be the signature's, and the map.
_KeptMap = tuple[_Owner, list[Any], int, Mapping[str, str]]


class _Maps:
    """The kept maps of signatures, and the changes to specs within a context.

    Attributes:
        changes: the number of changes to any spec, argument or signature.
        sources: by the address of a spec or an argument, the places of the maps made from it. A
            kept map keeps both alive, so no other object gets their addresses.
    """

    def __init__(self) -> None:
        self.is_open = False
        self.changes = 0
        self.kept: dict[_Place, _KeptMap] = {}
        self.sources: dict[int, set[_Place]] = defaultdict(set)

    def discard(self, source: object) -> None:
        """Discard the maps that are made from a spec or an argument, which changes."""
        self.changes += 1
        for place in self.sources.pop(id(source), ()):
            self.kept.pop(place, None)

    def find(
        self, place: _Place, signature: ExportGraphSignature, specs: list[Any]
    ) -> Mapping[str, str] | None:
        """Return the kept map of a signature, if it is still the one of these specs."""
        if place not in self.kept:
            return None
        owner, kept_specs, changes, names = self.kept[place]
        if owner() is not signature:
            return None
        # Comparing specs is quick if they are the same objects. An equal spec does as well, but
        # not once that one may have changed: nothing is discarded then.
        if changes == self.changes:
            return names if kept_specs == specs else None
        if len(kept_specs) != len(specs) or not all(map(is_, kept_specs, specs)):
            return None
        self.kept[place] = owner, kept_specs, self.changes, names
        return names

    def keep(
        self,
        place: _Place,
        signature: ExportGraphSignature,
        specs: list[Any],
        names: Mapping[str, str],
    ) -> None:
        """Keep the map of a signature."""
        self.kept[place] = ref(signature), list(specs), self.changes, names
        for spec in specs:
            self.sources[id(spec)].add(place)
            self.sources[id(spec.arg)].add(place)


_maps = _Maps()


@contextmanager
def counted_changes() -> Iterator[None]:
    """Keep maps within the context, and count all changes to specs."""

    def set_attribute(self: Any, name: str, value: Any) -> None:
        _maps.discard(self)
        object.__setattr__(self, name, value)

    for kind in _MUTABLE:
        kind.__setattr__ = set_attribute  # type: ignore[assignment, method-assign]
    _maps.is_open = True
    try:
        yield
    finally:
        _maps.is_open = False
        _maps.kept.clear()
        _maps.sources.clear()
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
            names = _maps.find(place, self, specs)
            if names is None:
                names = get(self)
                _maps.keep(place, self, specs, names)
            return names

        return property(get_kept)

    return make
