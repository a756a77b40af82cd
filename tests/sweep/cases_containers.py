"""Dictionaries, tuples, dataclasses and registered containers, as arguments and outputs."""

import dataclasses
import enum
from collections import OrderedDict, defaultdict, deque, namedtuple
from typing import NamedTuple

import torch
from torch.utils import _pytree as pytree

from tests.sweep.cases import export_of, linear, method, module, program, randn


@method({0: randn(4), 5: randn(4)})
def dict_int_keys(self, d):
    return {1: d[0] + d[5], 2: d[5]}


@method({"x": randn(4)})
def dict_tuple_keys(self, d):
    return {("a", 1): d["x"] + 1}


@program
def containers():

    def forward(self, d):
        return OrderedDict(a=d["x"][0] + 1, b=[d["x"][1], (d["y"],)]), {"e": ()}, []

    return export_of(module(forward), ({"x": [randn(4), randn(4)], "y": randn(4)},))


@method(defaultdict(list, {"x": randn(4)}))
def container_default(self, d):
    r = defaultdict(list)
    r["a"] = [d["x"] + 1]
    return r


@method({"x": randn(4)})
def container_default_own(self, d):
    r = defaultdict(lambda: 0)
    r["a"] = d["x"] + 1
    return r


@method(defaultdict(None, {"x": randn(4)}))
def container_default_none(self, d):
    r = defaultdict(None)
    r["a"] = d["x"] + 1
    return r


@method(deque([randn(4), randn(4)]))
def container_deque(self, d):
    return deque([d[0] + 1, d[1]])


@method(deque([randn(4), randn(4)], maxlen=2))
def container_deque_maxlen(self, d):
    return deque([d[0] + 1, d[1]], maxlen=4)


Pair = namedtuple("Pair", "u v")


@method(Pair(randn(4), randn(4)))
def container_namedtuple(self, p):
    return Pair(p.u + p.v, p.v * 2)


class Typed(NamedTuple):
    u: torch.Tensor
    v: torch.Tensor | None = None


@method(Typed(randn(4), randn(4)))
def container_namedtuple_typed(self, p):
    return Typed(p.u * 2)


@method(randn(4, 8))
def topk(self, x):
    return x.topk(2)


@method(randn(4, 8))
def max_dim(self, x):
    return torch.max(x, 1), x.min(0), x.sort(), torch.linalg.qr(x)[0]


@dataclasses.dataclass
class Point:
    a: torch.Tensor
    b: torch.Tensor | None = None


torch.export.register_dataclass(Point, serialized_type_name="tests.sweep.Point")


@method(Point(randn(4), randn(4)))
def container_dataclass(self, p):
    return Point(p.a * 2, None)


@dataclasses.dataclass
class UnnamedPoint:
    a: torch.Tensor
    b: torch.Tensor | None = None


torch.export.register_dataclass(UnnamedPoint)


@method(UnnamedPoint(randn(4), randn(4)))
def container_dataclass_unnamed(self, p):
    return UnnamedPoint(p.a * 2, None)


A, B = pytree.GetAttrKey("a"), pytree.GetAttrKey("b")


class Registered:
    def __init__(self, a, b, tag):
        self.a, self.b, self.tag = a, b, tag


pytree.register_pytree_node(
    Registered,
    lambda r: ([r.a, r.b], r.tag),
    lambda c, t: Registered(c[0], c[1], t),
    flatten_with_keys_fn=lambda r: ([(A, r.a), (B, r.b)], r.tag),
    serialized_type_name="tests.sweep.Registered",
)


@method(Registered(randn(4), randn(4), "tag"))
def container_registered(self, p):
    return Registered(p.a * 2, p.b, "t2")


class UnnamedRegistered:
    def __init__(self, a, b):
        self.a, self.b = a, b


pytree.register_pytree_node(
    UnnamedRegistered,
    lambda r: ([r.a, r.b], {"k": (1, 2)}),
    lambda c, t: UnnamedRegistered(c[0], c[1]),
    flatten_with_keys_fn=lambda r: ([(A, r.a), (B, r.b)], {"k": (1, 2)}),
)


@method(UnnamedRegistered(randn(4), randn(4)))
def container_registered_unnamed(self, p):
    return UnnamedRegistered(p.a * 2, p.b)


class Mode(enum.Enum):
    A = 1


class RegisteredMode:
    def __init__(self, a, mode):
        self.a, self.mode = a, mode


pytree.register_pytree_node(
    RegisteredMode,
    lambda r: ([r.a], r.mode),
    lambda c, t: RegisteredMode(c[0], t),
    flatten_with_keys_fn=lambda r: ([(A, r.a)], r.mode),
    serialized_type_name="tests.sweep.RegisteredMode",
)


@method(RegisteredMode(randn(4), Mode.A))
def container_registered_enum(self, p):
    return RegisteredMode(p.a * 2, Mode.A)


@method(randn(4), Mode.A)
def input_enum(self, x, m):
    return x + 1


class Color(enum.Enum):
    RED = "r"
    BLUE = 2


class IColor(enum.IntEnum):
    RED = 1


class SColor(enum.StrEnum):
    RED = "red"


@method({Color.BLUE: randn(4)})
def dict_enum_keys(self, d):
    return {Color.RED: d[Color.BLUE] + 1, IColor.RED: d[Color.BLUE] * 2, SColor.RED: d[Color.BLUE]}


@method({("x", 2): randn(4)})
def dict_tuple_in(self, d):
    return {("a", (1, True)): d["x", 2] + 1}


@method(OrderedDict({Color.BLUE: randn(4)}))
def defaultdict_enum(self, d):
    r = defaultdict(linear, {Color.RED: d[Color.BLUE] + 1})
    return r


@method([randn(4), randn(3)])
def list_in_out(self, xs, t=(1, 2.0)):
    return [x * 2 for x in xs], tuple(xs[:1])
