"""Represents containers of a method's arguments and results, such as named tuples and dataclasses.

torch keeps the name of such a class, a string that describes its fields (the context), and its
elements; ExecuTorch writes the name and the context into the package. Nothing else about the class
matters, so no archive makes us import one: stand-in classes in this module replace classes unknown
to this process, and also enumerations and default factories. Callers of a method see tuples, lists
and dicts instead. Source: `torch/utils/_pytree.py` of torch 2.13.
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
    """A stand-in for an instance of a class known only by name. `context` is JSON."""

    def __init__(self, children: Iterable[Any], context: str) -> None:
        self.children = list(children)
        self.context = context


class _NamedTuple(tuple[Any, ...]):
    """A stand-in for an instance of a named tuple, with any number of fields."""

    _fields = ()

    def __new__(cls, *values: Any) -> Self:
        return super().__new__(cls, values)

    @classmethod
    def _make(cls, values: Iterable[Any]) -> Self:
        return cls(*values)

    def _asdict(self) -> dict[str, Any]:
        return dict(zip(map(str, range(len(self))), self, strict=True))


def load_tree(text: str) -> TreeSpec:
    """Return the tree that `treespec_dumps` wrote and `archive_grammar` checked.

    Like torch's `treespec_loads`, but without importing the classes that an archive names.

    Raises:
        ValueError: a name is used both for a named tuple and for another class.
    """
    _, tree = json.loads(text)
    _register_stand_ins(tree)
    return _make_spec(tree)


def _make_spec(tree: Mapping[str, Any]) -> TreeSpec:
    kind = tree["type"]
    context = tree["context"]
    if kind is None:
        return pytree.treespec_leaf()
    children = [_make_spec(child) for child in tree["children_spec"]]
    container = pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE[kind]
    load_context = pytree.SUPPORTED_SERIALIZED_TYPES[container].from_dumpable_context
    if kind == _DEFAULTDICT:
        factory = _stand_in_factory(
            context["default_factory_module"], context["default_factory_name"]
        )
        context = [factory, _decode_key(context["dict_context"])]
    elif load_context is not None:
        context = load_context(context)
    else:
        # torch does the same for containers without a context loader.
        context = json.loads(context, object_hook=_decode_member)
        if container in (dict, OrderedDict):
            context = [_decode_key(key) for key in context]
    return TreeSpec(container, context, children)


def _decode_key(value: Any) -> Any:
    """Decode a dict's key, or a tuple of keys, from its JSON."""
    if isinstance(value, dict):
        return _decode_member(value)
    if isinstance(value, list):
        return tuple(map(_decode_key, value))
    return value


def _decode_member(value: dict[str, Any]) -> Any:
    if "__enum__" in value:
        return _stand_in_member(value["fqn"], value["name"])
    return value


@cache
def _stand_in_member(place: str, name: str) -> Enum:
    """Return the named member of a stand-in enumeration."""
    module, _, path = place.partition(":")
    class_name = path.rpartition(".")[2]
    make_enum: Any = Enum  # mypy rejects a class that isn't written out
    member: Enum = make_enum(class_name, [name], module=module, qualname=path)[name]
    return member


@cache
def _stand_in_factory(module: str, name: str) -> Callable[[], Any]:
    """Return a defaultdict's factory: a builtin type, or a stand-in that is never called."""
    builtin = getattr(builtins, name, None) if module == "builtins" else None
    if isinstance(builtin, type):
        return builtin

    def factory() -> None: ...

    factory.__module__, factory.__qualname__ = module, name
    return factory


def _register_stand_ins(tree: Mapping[str, Any]) -> None:
    """Register a stand-in for each class of a tree that this process doesn't know."""
    is_namedtuple_by_name: dict[str, bool] = {}
    for name, is_namedtuple in _iter_classes(tree):
        conflicts = (
            is_namedtuple_by_name.setdefault(name, is_namedtuple) != is_namedtuple
        )
        registered = pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE.get(name)
        if registered is not None:
            fits = pytree.is_namedtuple_class(registered) == is_namedtuple
            if fits and not conflicts:
                continue
            # A stand-in left by an earlier archive may be replaced; a real class never is.
            if not fits and not issubclass(registered, _Container | _NamedTuple):
                conflicts = True
        if conflicts:
            raise ValueError(
                f"'{name}' is {'no' if is_namedtuple else 'a'} named tuple"
            )
        if is_namedtuple:
            stand_in = type("NamedTuple", (_NamedTuple,), {})
            pytree._register_namedtuple(stand_in, serialized_type_name=name)
        else:
            _register(type("Container", (_Container,), {}), name)


def _iter_classes(tree: Mapping[str, Any]) -> Iterator[tuple[str, bool]]:
    """Yield the name of each container's class, and whether the class is a named tuple."""
    kind = tree["type"]
    if kind == _NAMEDTUPLE:
        yield tree["context"], True
    elif kind is not None:
        yield kind, False
    for child in tree["children_spec"]:
        yield from _iter_classes(child)


def _register(stand_in: type[_Container], name: str) -> None:
    def flatten(value: _Container) -> tuple[list[Any], str]:
        return value.children, value.context

    def flatten_with_keys(value: _Container) -> tuple[list[Any], str]:
        children = [
            (pytree.SequenceKey(n), child) for n, child in enumerate(value.children)
        ]
        return children, value.context

    def unflatten(children: Iterable[Any], context: Any) -> _Container:
        return stand_in(children, str(context))

    pytree.register_pytree_node(
        stand_in,
        flatten,
        unflatten,
        serialized_type_name=name,
        to_dumpable_context=json.loads,
        from_dumpable_context=json.dumps,
        flatten_with_keys_fn=flatten_with_keys,
    )
    fx_pytree.register_pytree_flatten_spec(stand_in, lambda value, _: value.children)


def build_plain(leaves: Iterable[Any], spec: TreeSpec) -> Any:
    """Build a spec's tree from these leaves, using only tuples, lists and dicts.

    A container whose elements have names, such as a dataclass, becomes a dict; a list stays a list,
    and any other container becomes a tuple.
    """
    values = iter(leaves)

    def build(spec: TreeSpec) -> Any:
        if spec.is_leaf():
            return next(values)
        children = [build(child) for child in spec.children()]
        if isinstance(spec.type, type) and issubclass(spec.type, list):
            return children
        keys = _find_keys(spec)
        if keys is None:
            return tuple(children)
        return dict(zip(keys, children, strict=True))

    return build(spec)


def make_plain(value: Any) -> Any:
    """Return a value with all containers that torch knows converted to tuples, lists and dicts."""
    return build_plain(*pytree.tree_flatten(value))


def _find_keys(spec: TreeSpec) -> Sequence[Any] | None:
    """Return the keys of a container's elements, or None if the elements have no keys."""
    context = spec.context
    if spec.type is defaultdict:
        return [_plain_key(key) for key in context[1]]
    if spec.type in (dict, OrderedDict):
        return [_plain_key(key) for key in context]
    while isinstance(context, str):
        try:
            context = json.loads(context)
        except ValueError:
            return None
    candidates = [context]
    # The context of a dataclass has two lists: the names of its fields, and the names of the fields
    # that are None.
    if isinstance(context, list):
        candidates += context[:1]
    for candidate in candidates:
        if _are_names(candidate, spec.num_children):
            return candidate  # type: ignore[no-any-return]
    return None


def _are_names(value: Any, number: int) -> bool:
    """Return whether a value is a list of exactly this many distinct names."""
    if not isinstance(value, list) or not value:
        return False
    if not all(isinstance(name, str) for name in value):
        return False
    return len(value) == len(set(value)) == number


def _plain_key(key: Any) -> Any:
    """Return a key with each enumeration member replaced by its name.

    A member that is also a str or an int is replaced by its value, as JSON writes it.
    """
    if isinstance(key, tuple):
        return tuple(map(_plain_key, key))
    if not isinstance(key, Enum):
        return key
    if isinstance(key, str | int):
        return key.value
    return f"{type(key).__name__}.{key.name}"


def make_serializable(spec: TreeSpec) -> TreeSpec:
    """Return a spec that torch can serialize.

    Containers without a registered name, such as the result of `topk`, become tuples or dicts.
    """
    if spec.is_leaf():
        return spec
    children = [make_serializable(child) for child in spec.children()]
    try:
        pytree.treespec_dumps(TreeSpec(spec.type, spec.context, []))
    except (NotImplementedError, TypeError):
        keys = _find_keys(spec)
        if keys is None:
            return TreeSpec(tuple, None, children)
        return TreeSpec(dict, keys, children)
    return TreeSpec(spec.type, spec.context, children)
