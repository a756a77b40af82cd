"""Names and strings that are hard to serialize."""

import torch
from torch import nn

from tests.sweep.cases import linear, method, randn


@method(randn(4, 8), 'it\'s "q" \\ \n é')
def in_string_quotes(self, x, s):
    return x + len(s)


@method({"a b": randn(4), "c.d": randn(4), "e-f": randn(4)})
def kw_odd(self, d):
    return d["a b"] + d["c.d"] + d["e-f"]


@method({"it's": randn(4), 'say "x"': randn(4)})
def dict_quotes(self, d):
    return d["it's"] + d['say "x"']


@method({"größe": randn(4), "日本": randn(4)})
def dict_unicode(self, d):
    return d["größe"] + d["日本"]


@method({"a\nb": randn(4), "c\\d": randn(4)})
def dict_newline(self, d):
    return d["a\nb"] + d["c\\d"]


@method(
    None,
    randn(2, 8),
    randn(2, 8),
    lambda_=linear(),
    m=nn.ModuleDict({"a-b": linear(), "c d": linear(), "0": linear()}),
)
def names_odd(self, self_=None, x=None, input=None):
    return self.m["a-b"](self.m["c d"](self.lambda_(x))) + self.m["0"](input)


@method(randn(2, 8), größe=linear(), m=nn.ModuleDict({"日本": linear()}))
def names_unicode(self, ß):
    return self.m["日本"](self.größe(ß))


@method(randn(2, 8), m=nn.ModuleDict({"it's": linear()}))
def names_quotes(self, x):
    return self.m["it's"](x)


@method(randn(2, 8), m=nn.ModuleDict({'say "x"': linear()}))
def names_dquotes(self, x):
    return self.m['say "x"'](x)


@method(randn(2, 8), m=nn.ModuleDict({"a\\c": linear()}))
def names_backslash(self, x):
    return self.m["a\\c"](x)


@method(randn(2, 8), m=nn.ModuleDict({"a,b": linear()}))
def names_commas(self, x):
    return self.m["a,b"](x)


@method(randn(2, 8), m=nn.ModuleDict({"a;b": linear()}))
def names_semicolon(self, x):
    return self.m["a;b"](x)


@method(randn(2, 8), m=nn.ModuleDict({"a(b": linear(), "g]": linear()}))
def names_paren(self, x):
    return self.m["a(b"](self.m["g]"](x))


@method(randn(2, 8), m=nn.ModuleDict({"a\nb": linear()}))
def names_newline(self, x):
    return self.m["a\nb"](x)


@method(randn(2, 8), m=nn.ModuleDict({"__a__": linear()}))
def names_dunder(self, x):
    return self.m["__a__"](x)


@method(randn(4), __c__=torch.ones(4))
def buffer_dunder(self, x):
    return x + self.__c__


@method(randn(2, 8), m=nn.ModuleDict({"x" * 1500: linear()}))
def names_long(self, x):
    return self.m["x" * 1500](x)
