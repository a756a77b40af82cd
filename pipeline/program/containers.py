"""Containers of a method's arguments and results, such as named tuples and dataclasses.

torch keeps the name of such a class, a text about its fields, and what it holds; ExecuTorch writes
name and text into the package. Nothing else of the class counts, so none is imported on the word of
an archive: classes of this module stand in for those that this process doesn't know, and for
enumerations and factories of default values. Whoever calls a method meets tuples, lists and dicts
instead. Source: `torch/utils/_pytree.py` of torch 2.13.
"""

from __future__ import annotations

import builtins
import json
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from functools import cache
from typing import Any, Self

from torch.fx import _pytree as fx_pytree
from torch.utils import _pytree as pytree
from torch.utils._pytree import TreeSpec

_NAMEDTUPLE = "collections.namedtuple"
_DEFAULTDICT = "collections.defaultdict"


class _Container:
    """Stands in for an instance of a class that is known by name. `context` is JSON."""

    def __init__(self, children: Iterable[Any], context: str) -> None:
        self.children = list(children)
        self.context = context


class _NamedTuple(tuple[Any, ...]):
    """Stands in for an instance of a named tuple, with any number of fields."""

    _fields = ()

    def __new__(cls, *values: Any) -> Self:
        return super().__new__(cls, values)

    @classmethod
    def _make(cls, values: Iterable[Any]) -> Self:
        return cls(*values)

    def _asdict(self) -> dict[str, Any]:
        return dict(zip(map(str, range(len(self))), self, strict=True))


def load_tree(text: str) -> TreeSpec:
    """Return the tree that `treespec_dumps` wrote and `archive_grammar` checked, as torch's
    `treespec_loads` does where that can be imported.

    Raises ValueError where a name is that of a named tuple in one place and not in another.
    """
    _, tree = json.loads(text)
    _register_stand_ins(tree)
    return _make_spec(tree)


def _make_spec(tree: Mapping[str, Any]) -> TreeSpec:
    kind, context = tree["type"], tree["context"]
    if kind is None:
        return pytree.treespec_leaf()
    children = [_make_spec(child) for child in tree["children_spec"]]
    own = pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE[kind]
    if kind == _DEFAULTDICT:
        factory = context["default_factory_module"], context["default_factory_name"]
        context = [_stand_in_factory(*factory), _revive(context["dict_context"])]
    elif (load := pytree.SUPPORTED_SERIALIZED_TYPES[own].from_dumpable_context) is not None:
        context = load(context)
    else:
        context = json.loads(context, object_hook=_revive_member)
        if own in (dict, OrderedDict):
            context = [_revive(key) for key in context]
    return TreeSpec(own, context, children)


def _revive(value: Any) -> Any:
    """Return a key of a dict, or a list of them, of which JSON makes lists and mappings."""
    if isinstance(value, dict):
        return _revive_member(value)
    return tuple(map(_revive, value)) if isinstance(value, list) else value


def _revive_member(value: dict[str, Any]) -> Any:
    return _stand_in_member(value["fqn"], value["name"]) if "__enum__" in value else value


@cache
def _stand_in_member(place: str, name: str) -> Enum:
    """Return the member of this name of a class that stands in for an enumeration."""
    module, _, path = place.partition(":")
    make: Any = Enum  # mypy wants a class that is written out
    member: Enum = make(path.rpartition(".")[2], [name], module=module, qualname=path)[name]
    return member


@cache
def _stand_in_factory(module: str, name: str) -> Callable[[], Any]:
    """Return the factory of a defaultdict, or a function of its name that nobody calls."""
    if module == "builtins" and isinstance(known := getattr(builtins, name, None), type):
        return known

    def factory() -> None: ...

    factory.__module__, factory.__qualname__ = module, name
    return factory


def _register_stand_ins(tree: Mapping[str, Any]) -> None:
    """Register a stand-in for each class that a tree names and this process does not know."""
    kinds: dict[str, bool] = {}
    for name, named in _iter_classes(tree):
        known = pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE.get(name)
        other = known is not None and pytree.is_namedtuple_class(known) != named
        foreign = other and not issubclass(known or object, _Container | _NamedTuple)
        if foreign or kinds.setdefault(name, named) != named:
            raise ValueError(f"'{name}' is {'no' if named else 'a'} named tuple")
        if known is not None and not other:
            continue
        if named:  # of another kind are stand-ins of what this process loaded before
            own = type("NamedTuple", (_NamedTuple,), {})
            pytree._register_namedtuple(own, serialized_type_name=name)
        else:
            _register(type("Container", (_Container,), {}), name)


def _iter_classes(tree: Mapping[str, Any]) -> Iterator[tuple[str, bool]]:
    """Yield the name of each container's class, and whether it is a named tuple's."""
    if (kind := tree["type"]) is not None:
        named = kind == _NAMEDTUPLE
        yield (tree["context"] if named else kind), named
    for child in tree["children_spec"]:
        yield from _iter_classes(child)


def _register(stand_in: type[_Container], name: str) -> None:
    pytree.register_pytree_node(
        stand_in,
        lambda value: (value.children, value.context),
        lambda children, context: stand_in(children, str(context)),
        serialized_type_name=name,
        to_dumpable_context=json.loads,
        from_dumpable_context=json.dumps,
        flatten_with_keys_fn=lambda value: (
            [(pytree.SequenceKey(n), each) for n, each in enumerate(value.children)],
            value.context,
        ),
    )
    fx_pytree.register_pytree_flatten_spec(stand_in, lambda value, _: value.children)


def build_plain(leaves: Iterable[Any], spec: TreeSpec) -> Any:
    """Return the tree of a spec with these leaves, made of tuples, lists and dicts.

    A container with names for what it holds, as a dataclass, is a dict; any other one is a tuple.
    """
    values = iter(leaves)

    def build(spec: TreeSpec) -> Any:
        if spec.is_leaf():
            return next(values)
        children = [build(child) for child in spec.children()]
        if isinstance(spec.type, type) and issubclass(spec.type, list):
            return children
        keys = _find_keys(spec)
        return tuple(children) if keys is None else dict(zip(keys, children, strict=True))

    return build(spec)


def make_plain(value: Any) -> Any:
    """Return a value in which each container that torch knows is a tuple, list or dict."""
    return build_plain(*pytree.tree_flatten(value))


def _find_keys(spec: TreeSpec) -> Sequence[Any] | None:
    """Return the keys of what a container holds; None where it has none."""
    context = spec.context
    if spec.type in (dict, OrderedDict, defaultdict):
        return [_plain_key(key) for key in (context[1] if spec.type is defaultdict else context)]
    while isinstance(context, str):
        try:
            context = json.loads(context)
        except ValueError:
            return None
    # What torch has of a dataclass are the names of its fields, and of those that are None.
    nested = context[:1] if isinstance(context, list) else []
    for names in (context, *nested):
        texts = isinstance(names, list) and all(isinstance(name, str) for name in names)
        if texts and names and len(names) == len(set(names)) == spec.num_children:
            return names  # type: ignore[no-any-return]
    return None


def _plain_key(key: Any) -> Any:
    """Return a key in which a member of an enumeration goes by its name, or its value if that is
    what JSON writes of it."""
    if isinstance(key, tuple):
        return tuple(map(_plain_key, key))
    if not isinstance(key, Enum):
        return key
    return key.value if isinstance(key, str | int) else f"{type(key).__name__}.{key.name}"


def make_serializable(spec: TreeSpec) -> TreeSpec:
    """Return a spec that torch can write: containers without a registered name, as what `topk`
    gives, are tuples or dicts in it."""
    if spec.is_leaf():
        return spec
    children = [make_serializable(child) for child in spec.children()]
    try:
        pytree.treespec_dumps(TreeSpec(spec.type, spec.context, []))
    except (NotImplementedError, TypeError):
        keys = _find_keys(spec)
        return TreeSpec(tuple, None, children) if keys is None else TreeSpec(dict, keys, children)
    return TreeSpec(spec.type, spec.context, children)
