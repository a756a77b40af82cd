"""Untrusted archives and input files: nothing in them runs, and no claim is trusted."""

import collections
import contextlib
import dataclasses
import json
import os
import re
import socket
import struct
import subprocess
import sys
import typing
import zipfile
from enum import IntEnum
from types import UnionType

import numpy
import pytest
import torch
from torch._export.serde import schema, serialize
from torch._export.serde.union import _Union
from torch.export import Dim, export
from torch.export.pt2_archive._package import package_pt2

from pipeline.program import archive_grammar, archive_schema
from pipeline.program.archive import load_example_inputs, load_program
from pipeline.program.archive_facts import describe_archive
from pipeline.program.archive_schema import ELEMENT_SIZES, SCHEMA, SCHEMA_VERSION
from pipeline.program.containers import load_tree
from pipeline.program.input_files import read_file
from pipeline.program.size_expressions import check_size_expression
from pipeline.program.sources import find_sources
from pipeline.report.quoted_files import named_files, read_sources
from pipeline.store.digest import hash_file
from pipeline.store.errors import PipelineError, SourceError
from tests.trust.mutations import Archive, attempt, mutate

ENTRY = "m"
NAMED = "collections.namedtuple"


class Two(torch.nn.Module):
    """Private sizes, a branch, named inputs, weights and a constant."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.register_buffer("halves", torch.full((4,), 0.5))
        self.constant = torch.tensor([1.0, 2.0, 3.0, 4.0])

    def forward(self, x, *, scale, mode="fast"):
        y = torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,))
        return self.linear(y[::2]) * self.halves + self.constant * scale["by"]


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("models") / "a.pt2"
    shapes = {"x": {0: Dim("rows", min=4, max=99)}, "scale": {"by": {}}, "mode": None}
    keywords = {"scale": {"by": torch.ones(4)}, "mode": "slow"}
    program = export(Two(), (torch.ones(6, 4),), keywords, dynamic_shapes=shapes)
    package_pt2(str(path), exported_programs={ENTRY: program})
    return Archive.read(path)


@pytest.fixture
def ran(tmp_path):
    """Return a file that a successful attack would write."""
    return tmp_path / "ran"


def refusals(archive, path):
    """Return the one-line errors from describing and from loading an archive."""
    archive.write(path)
    lines = []
    for read in (lambda: describe_archive(path), lambda: load_program(path, ENTRY)):
        with pytest.raises(SourceError, match=rf"^{path.parent.name}/{path.name}: ") as error:
            read()
        lines.append(str(error.value))
        assert "\n" not in lines[-1] and len(lines[-1]) < 700
    return lines


def test_an_archive_that_torch_wrote_is_read(original, tmp_path):
    original.write(tmp_path / "a.pt2")
    describe_archive(tmp_path / "a.pt2")
    program = load_program(tmp_path / "a.pt2", ENTRY)
    args, keywords = load_example_inputs(tmp_path / "a.pt2", ENTRY)
    assert program.module()(*args, **keywords).shape == (3, 4)


# Code

CODE = "__import__('pathlib').Path({ran!r}).touch()"


def _sizes(program):
    """Yield all size expressions of a program."""
    if isinstance(program, dict):
        if "expr_str" in program:
            yield program
        for value in program.values():
            yield from _sizes(value)
    elif isinstance(program, list):
        for value in program:
            yield from _sizes(value)


def _size(program, code):
    for each in _sizes(program):
        each["expr_str"] = f"{code} or 2"


def _bool_size(program, code):
    program["graph_module"]["graph"]["sym_bool_values"]["b"] = {"as_expr": {"expr_str": code}}


def _renamed(program, old, new):
    """Rename a value everywhere, as an attacker would."""
    text = json.dumps(program).replace(json.dumps(old), json.dumps(new))
    program.clear()
    program.update(json.loads(text))


def _value_name(program, code):
    _renamed(program, "x", f"x={code}")


def _node_name(program, code):
    program["graph_module"]["graph"]["nodes"][0]["name"] = f"y = {code}; z"


def _graph_name(program, code):
    for node in program["graph_module"]["graph"]["nodes"]:
        for given in node["inputs"]:
            if "as_graph" in given["arg"]:
                given["arg"]["as_graph"]["name"] = f"a; {code}; b"


def _keyword_name(program, code):
    program["graph_module"]["graph"]["nodes"][0]["inputs"][0] |= {
        "name": f"x={code}, y",
        "kind": 2,
    }


def _argument_name(program, code):
    signature = program["graph_module"]["module_call_graph"][0]["signature"]
    signature["forward_arg_names"] = ["x", f"scale={code}", "mode"]


def _argument_keyword(program, code):
    signature = program["graph_module"]["module_call_graph"][0]["signature"]
    signature["forward_arg_names"] = None
    tree = json.loads(signature["in_spec"])
    tree[1]["children_spec"][1]["context"] = json.dumps([f"scale={code}", "mode"])
    signature["in_spec"] = json.dumps(tree)


def _dict_key(program, code):
    signature = program["graph_module"]["module_call_graph"][0]["signature"]
    tree = json.loads(signature["in_spec"])
    kwargs = tree[1]["children_spec"][1]
    kwargs["children_spec"][0]["context"] = json.dumps([f'by" + str({code}) + "'])
    signature["in_spec"] = json.dumps(tree)


def _text_input(program, code):
    graph = program["graph_module"]["graph"]
    place = next(n for n, given in enumerate(graph["inputs"]) if "as_string" in given)
    graph["inputs"][place] = {"as_string": f"slow' or {code} or '"}


def _weight_name(program, code):
    for spec in program["graph_module"]["signature"]["input_specs"]:
        if "parameter" in spec:
            spec["parameter"]["parameter_name"] = f'a") or {code.replace(".", "")} or ("'


def _guard(program, code):
    program["guards_code"] = [code]


def _enumeration(program, code):
    signature = program["graph_module"]["module_call_graph"][0]["signature"]
    tree = json.loads(signature["in_spec"])
    tree[1]["children_spec"][1]["context"] = json.dumps(
        [{"__enum__": True, "fqn": "antigravity:A", "name": "B"}]
    )
    signature["in_spec"] = json.dumps(tree)


def _factory(program, code):
    signature = program["graph_module"]["module_call_graph"][0]["signature"]
    context = {"default_factory_module": "this", "default_factory_name": "s", "dict_context": []}
    tree = {"type": "collections.defaultdict", "context": context, "children_spec": []}
    signature["out_spec"] = json.dumps([1, tree])


def _call_tree(program, code):
    """Put a call's keywords into a class's container, whose keys nothing else would check."""
    signature = program["graph_module"]["module_call_graph"][0]["signature"]
    tree = json.loads(signature["in_spec"])
    tree[1]["children_spec"][1]["type"] = "collections.OrderedDict"
    signature["in_spec"] = json.dumps(tree)


def _class(name, context="[]"):
    def change(program, code):
        signature = program["graph_module"]["module_call_graph"][0]["signature"]
        tree = {"type": name, "context": context, "children_spec": []}
        signature["out_spec"] = json.dumps([1, tree])

    return change


def _target(name):
    def change(program, code):
        program["graph_module"]["graph"]["nodes"][0]["target"] = name

    return change


def _argument(**value):
    def change(program, code):
        program["graph_module"]["graph"]["nodes"][0]["inputs"][0]["arg"] = value

    return change


CODE_ATTACKS = {
    "size": _size,
    "bool size": _bool_size,
    "name of a value": _value_name,
    "name of a node": _node_name,
    "name of a branch": _graph_name,
    "name of a keyword": _keyword_name,
    "name of an argument": _argument_name,
    "keyword of a call": _argument_keyword,
    "name of a weight": _weight_name,
    "enumeration": _enumeration,
    "tree of a call": _call_tree,
    "class without a name": _class("NO_SERIALIZED_TYPE_NAME_FOUND"),
    "name of a class": _class("a\nb"),
    "name of a named tuple": _class("collections.namedtuple", 'a"b'),
    **{
        name: _target(name)
        for name in (
            "torch.os.system",
            "torch.load",
            "torch.hub.load",
            "torch.ops.load_library",
            "torch.ops.load_library.__call__.__call__",
            "torch.ops.aten.add.__class__",
            "torch.ops.aten.from_file.default",
            "torch.ops.aten.from_file.out",
            "torch.ops.debugprims.load_tensor.default",
            "torch.ops.higher_order.inductor_compiled_code",
            "torch._C._jit_set_profiling_mode",
            "_operator.__class__",
            "_operator.methodcaller",
            "math.__loader__.load_module",
            "#triton:x",
            "builtins.eval",
        )
    },
    "operator as argument": _argument(as_operator="torch.os.system"),
    "custom object": _argument(as_custom_obj={"name": "x", "class_fqn": "y"}),
    "device": _argument(as_device={"type": "cpu'), f(", "index": None}),
}


@pytest.mark.parametrize("attack", CODE_ATTACKS.values(), ids=CODE_ATTACKS)
def test_code_of_an_archive_is_refused_before_torch_sees_it(original, attack, tmp_path, ran):
    archive = original.copy()
    attack(archive.program, CODE.format(ran=str(ran)))
    for line in refusals(archive, tmp_path / "a.pt2"):
        assert "'m' is refused: graph_module." in line
    assert not ran.exists()


# Strings that torch turns into code in its checks of a call (`torch/export/_unlift.py`), or
# imports. A loaded program has no such checks, and stand-ins for the classes.
HARMLESS = {
    "key of a dict": _dict_key,
    "text as input": _text_input,
    "factory of a dict": _factory,
    "enumeration of a class": _class(
        "a.B", '[{"__enum__": true, "fqn": "antigravity:A", "name": "B"}]'
    ),
}


@pytest.mark.parametrize("attack", HARMLESS.values(), ids=HARMLESS)
def test_code_among_texts_and_trees_is_never_run(original, attack, tmp_path, ran):
    archive = original.copy()
    attack(archive.program, CODE.format(ran=str(ran)))
    archive.write(tmp_path / "a.pt2")
    describe_archive(tmp_path / "a.pt2")
    program = load_program(tmp_path / "a.pt2", ENTRY)
    made = (meta for node in program.graph.nodes if (meta := node.meta.get("val")) is not None)
    leaves = [each for each in made if isinstance(each, str)] or ["slow"]
    for text in leaves:
        keywords = {"scale": {key: torch.ones(4) for key in _keys_of_scale(program)}, "mode": text}
        with contextlib.suppress(Exception):
            module = program.module()
            module(torch.ones(6, 4), **keywords)
            export(module, (torch.ones(6, 4),), keywords).module()
    with contextlib.suppress(ValueError):  # a tree that doesn't match the program
        program.run_decompositions()
    assert not ran.exists()
    assert not {"antigravity", "this"} & set(sys.modules)


def _keys_of_scale(program):
    return program.call_spec.in_spec.child(1).child(0).context


@pytest.mark.parametrize(
    "change", [_class("collections.namedtuple", "builtins.dict"), _class("tests.Twin")]
)
def test_a_class_is_a_named_tuple_or_none(original, change, tmp_path):
    if "tests.Twin" not in torch.utils._pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE:
        twin = collections.namedtuple("Twin", "one two")
        torch.utils._pytree._register_namedtuple(twin, serialized_type_name="tests.Twin")
    archive = original.copy()
    change(archive.program, "")
    archive.write(tmp_path / "a.pt2")
    with pytest.raises(SourceError, match="named tuple"):
        load_program(tmp_path / "a.pt2", ENTRY)


def test_classes_of_an_archive_are_not_imported():
    """A stand-in replaces `antigravity.Flight`, which would open a browser."""
    tree = json.dumps([1, {"type": "antigravity.Flight", "context": "[]", "children_spec": []}])
    made = load_tree(tree).unflatten([])
    assert "antigravity" not in sys.modules
    assert type(made).__module__ == "pipeline.program.containers"


def test_one_archive_says_nothing_of_the_classes_of_another():
    """One worker loads both, and they name the same class."""
    named = json.dumps([1, {"type": NAMED, "context": "acme.Out", "children_spec": []}])
    other = json.dumps([1, {"type": "acme.Out", "context": "[]", "children_spec": []}])
    for tree in (named, other, named, other):
        load_tree(tree)
    both = {"type": "builtins.tuple", "context": "null"}
    both["children_spec"] = [json.loads(tree)[1] for tree in (named, other)]
    with pytest.raises(ValueError, match=r"'acme\.Out' is a named tuple"):
        load_tree(json.dumps([1, both]))
    for name in ("builtins.tuple", "torch.Size"):
        tree = json.dumps([1, {"type": NAMED, "context": name, "children_spec": []}])
        with pytest.raises(ValueError, match="no named tuple"):
            load_tree(tree)


def test_guards_are_left_out(original, tmp_path, ran):
    archive = original.copy()
    _guard(archive.program, CODE.format(ran=str(ran)))
    archive.write(tmp_path / "a.pt2")
    program = load_program(tmp_path / "a.pt2", ENTRY)
    args, keywords = load_example_inputs(tmp_path / "a.pt2", ENTRY)
    program.module()(*args, **keywords)
    program.run_decompositions()
    assert not ran.exists()


def test_a_name_that_torch_ops_has_beside_its_operators_is_no_operator(original, tmp_path):
    archive = original.copy()
    _target("torch.ops.aten.add.overloads")(archive.program, "")
    archive.write(tmp_path / "a.pt2")
    with pytest.raises(
        SourceError,
        match=r"which no imported library registers|not an allowed "
        "operator",
    ):
        load_program(tmp_path / "a.pt2", ENTRY)


# Sizes

SIZES = """
    Symbol('s77', positive=True, integer=True)|Mul(Integer(2), Symbol('s0', integer=True))|2*s69
    Add(Mul(Integer(48), Symbol('s0', positive=True, integer=True)), Integer(-25))|48*s3 - 25
    FloorDiv(Add(Symbol('s77', positive=True, integer=True), Integer(1)), Integer(2))|-s0 + 2**3
    Max(Integer(1), TruncToInt(Mul(Float('1.5', precision=53), ToFloat(Symbol('s77')))))
    Mul(Integer(2), Pow(Symbol('s53', positive=True, integer=True), Integer(2)))|Rational(1, 2)
    Pow(Symbol('s0'), Rational(1, 2))|Mul(Integer(-1), Pow(Symbol('s0'), Integer(-1)))|int_oo
    GreaterThan(Symbol('u0', integer=True), Integer(0))|Mod(s0, 2) == 0|((s0//2)) + 1
    Piecewise(ExprCondPair(Symbol('s0'), true), ExprCondPair(Integer(2), StrictLessThan(s0, 2)))
    And(Not(Equality(Symbol('s0'), Integer(3))), Unequality(Symbol('s0'), Integer(1)))
"""
NO_SIZES = [
    *("9**9**9", "Pow(9, Pow(9, 9))", "9**64**2", "LShift(1, 1000000000)", "Pow(2, s0)"),
    *("Pow(Pow(Pow(9, 64), 64), 64)", "(s0 + s1 + u0 + u1)**64", "2**(s0 - s0 + 99)"),
    *("Float('1e999999999')", "Float('1', precision=1000000000)", "9" * 5000, "1e999"),
    *("Symbol('u99999999999')", "Symbol('zuf99999999')", "Symbol('Integer')", "Symbol('a.b')"),
    *("Symbol('s0').free_symbols", "lambda: 1", "[x for x in ()]", "1 if s0 else 2", "s0; s1"),
    *("Function('x')(1)", "eval(1)", "N(1)", "x", "'a'", "f'{1}'", "", "(" * 5000, "-" * 5000),
    *(
        "Integer",
        "Integer(Integer)",
        "s0 := 1",
        "s0.x",
        "1,2",
        "s0\n__import__",
        "Integer(1, 2, 3)",
    ),
    *("s0 in s1", "s0 is 2", "0 < s0 < 2", "not s0", "Max(*s0)", "Symbol(**s0)", "0x10", "1_0"),
    *("Integer(b'1')", "Float(f'1')", "1j", "None", "...", "s0 << 9", "s0 @ s1", "Max(1, a=2)"),
    *("1+" * 70 + "1", "2**" * 70 + "1", "s0" + ".a" * 5000, "lambda:" * 2000 + "1"),
    *("Max(" + ",".join("1" * 20) + ")", "Add(" * 70 + "1" + ")" * 70, "\\u0061", "s0 # comment"),
]


@pytest.mark.parametrize("text", [t.strip() for t in re.split(r"[|\n]", SIZES) if t.strip()])
def test_what_torch_writes_of_sizes_is_read(text):
    check_size_expression(text)


@pytest.mark.parametrize("text", NO_SIZES, ids=[text[:30] for text in NO_SIZES])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(ValueError, match=r"^\w+ ") as error:
        check_size_expression(text)
    assert len(str(error.value)) < 200


def test_all_functions_of_sizes_are_known():
    """That is, `sympy_functions` of torch's deserializer, and what the module offers."""
    for name in torch.utils._sympy.functions.__all__:
        arguments = "s0, 2" if name in archive_sizes_of_two else "s0"
        check_size_expression(f"{name}({arguments})")


archive_sizes_of_two = frozenset({"FloatPow", "LShift", "RShift", "RoundDecimal"})


# The schema


def _spelled(kind):
    if typing.get_origin(kind) in (typing.Union, UnionType):
        return f"{_spelled(typing.get_args(kind)[0])}?"
    if typing.get_origin(kind) is list:
        return f"[{_spelled(typing.get_args(kind)[0])}]"
    if typing.get_origin(kind) is dict:
        return f"{{{_spelled(typing.get_args(kind)[1])}}}"
    return kind.__name__


def test_the_table_is_the_schema_of_torch():
    texts = {n for n in archive_grammar._GRAMMARS if n not in ("bool", "int", "float")}

    def plain(spelled):
        spelled = re.sub(r"{\w+:", "{", spelled)
        return re.sub(r"\w+", lambda m: "str" if m[0] in texts else m[0], spelled)

    for name, fields in SCHEMA.items():
        cls = getattr(schema, name.removeprefix("|"))
        assert issubclass(cls, _Union) == name.startswith("|")
        hints = typing.get_type_hints(cls, globalns=vars(schema))
        assert {f.removesuffix("?"): plain(kind) for f, kind in fields.items()} == {
            field.name: _spelled(hints[field.name]) for field in dataclasses.fields(cls)
        }
    for name, values in archive_schema.ENUMS.items():
        assert issubclass(getattr(schema, name), IntEnum)
        assert values == {int(member) for member in getattr(schema, name)}
    assert schema.SCHEMA_VERSION == SCHEMA_VERSION
    dtypes = serialize._SERIALIZE_TO_TORCH_DTYPE
    assert {int(kind): dtype.itemsize for kind, dtype in dtypes.items()} == ELEMENT_SIZES


# Sizes of tensors


def _meta(archive, kind="weights", name="linear.weight", **changes):
    record = archive.configs[kind]["config"][name]
    for key, value in changes.items():
        (record if key in record else record["tensor_meta"])[key] = value


def _ints(*values):
    return [{"as_int": value} for value in values]


EXTENTS = {
    "sizes": {"sizes": _ints(1 << 36, 1)},
    "strides": {"strides": _ints(1 << 20, 1)},
    "offset": {"storage_offset": {"as_int": 1}},
    "negative": {"strides": _ints(-4, 1)},
    "repeated": {"sizes": _ints(1 << 40, 4), "strides": _ints(0, 1)},
    "rank": {"sizes": _ints(4)},
    "dimensions": {"sizes": _ints(*[1] * 99), "strides": _ints(*[1] * 99)},
    "symbolic": {"sizes": [{"as_expr": {"expr_str": "s0"}}, {"as_int": 4}]},
    "dtype": {"dtype": 8},
    "unknown dtype": {"dtype": 0},
    "no dtype": {"dtype": 99},
    "sparse": {"layout": 1},
    "no meta": {"tensor_meta": None},
    "another member": {"path_name": "weight_99"},
    "outside": {"path_name": "../../../etc/passwd"},
    "object": {"path_name": "custom_obj_0"},
    "opaque": {"path_name": "opaque_obj_0"},
}


@pytest.mark.parametrize("kind", ["weights", "constants"])
@pytest.mark.parametrize("change", EXTENTS.values(), ids=EXTENTS)
def test_a_tensor_has_the_bytes_that_it_says(original, change, kind, tmp_path):
    archive = original.copy()
    archive.configs["constants"] = json.loads(json.dumps(archive.configs["weights"]))
    for name, data in original.members.items():
        if name.startswith("data/weights/weight_"):
            other = name.replace("weights/weight", "constants/tensor")
            archive.members.setdefault(other, data)
    for record in archive.configs["constants"]["config"].values():
        record["path_name"] = record["path_name"].replace("weight", "tensor")
    _meta(archive, kind, **change)
    refusals(archive, tmp_path / "a.pt2")


def test_a_tensor_that_says_that_it_is_pickled_and_is_not_is_refused(original, tmp_path):
    archive = original.copy()
    _meta(archive, use_pickle=True)
    archive.write(tmp_path / "a.pt2")
    describe_archive(tmp_path / "a.pt2")  # unpickles nothing
    with pytest.raises(SourceError, match=r"'linear\.weight' is stored pickled, and can't be read"):
        load_program(tmp_path / "a.pt2", ENTRY)


# Zip files


def _raw(path, find, change):
    """Change the directory's record of a member that contains `find`."""
    data = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as members:
        start = members.start_dir
    at = data.rindex(b"PK\1\2", start, data.index(find, start))
    change(data, at)
    path.write_bytes(data)


def _packed(path, form, at, value):
    _raw(
        path,
        b"data/weights/weight_0",
        lambda data, start: struct.pack_into(form, data, start + at, value),
    )


def _rewritten(path, **options):
    with zipfile.ZipFile(path) as old:
        members = {name: old.read(name) for name in old.namelist()}
    with zipfile.ZipFile(path, "w", **options) as new:
        for name, data in members.items():
            new.writestr(name, data)


def _with_member(name, data=b"x"):
    def change(path):
        with zipfile.ZipFile(path, "a") as members:
            root = members.namelist()[0].partition("/")[0]
            info = zipfile.ZipInfo("x")
            info.filename = name.format(root=root)
            members.writestr(info, data)

    return change


def _bomb(path):
    """Write a member of 6 GB of zeros to a small archive."""
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as members:
        root = members.namelist()[0].partition("/")[0]
        with members.open(f"{root}/data/weights/weight_9", "w", force_zip64=True) as file:
            for _ in range(64):
                file.write(bytes(1 << 20))


ZIPS = {
    "empty": lambda path: path.write_bytes(b""),
    "text": lambda path: path.write_text("hello"),
    "end alone": lambda path: path.write_bytes(b"PK\5\6" + bytes(18)),
    "half": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "last byte": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "compressed": lambda path: _rewritten(path, compression=zipfile.ZIP_DEFLATED),
    "bzip2": lambda path: _rewritten(path, compression=zipfile.ZIP_BZIP2),
    "bomb": _bomb,
    "encrypted": lambda path: _packed(path, "<H", 8, 1),
    "unknown compression": lambda path: _packed(path, "<H", 10, 77),
    "larger": lambda path: _packed(path, "<I", 24, 1 << 31),
    "both larger": lambda path: _sizes_of(path, 1 << 31),
    "smaller": lambda path: _sizes_of(path, 1),
    "elsewhere": lambda path: _packed(path, "<I", 42, 0),
    "beyond the end": lambda path: _packed(path, "<I", 42, 1 << 30),
    "checksum": lambda path: _packed(path, "<I", 16, 0),
    "up": _with_member("{root}/../../x"),
    "absolute": _with_member("/etc/x"),
    "another root": _with_member("other/x"),
    "backslash": _with_member("{root}\\..\\x"),
    "control": _with_member("{root}/\x1b[2J"),
    "long": _with_member("{root}/" + "x" * 5000),
    "twice": _with_member("{root}/ARCHIVE_FORMAT"),
    "pickled weights": _with_member("{root}/data/weights/m.pt"),
    "pickled constants": _with_member("{root}/data/constants/m.pt"),
}


def _sizes_of(path, size):
    _raw(
        path,
        b"data/weights/weight_0",
        lambda data, start: struct.pack_into("<II", data, start + 20, size, size),
    )


@pytest.mark.parametrize("damage", ZIPS.values(), ids=ZIPS)
def test_a_damaged_zip_is_one_line(original, damage, tmp_path):
    path = tmp_path / "a.pt2"
    original.write(path)
    damage(path)
    for read in (lambda: describe_archive(path), lambda: load_program(path, ENTRY)):
        with pytest.raises(SourceError, match=r"a\.pt2: ") as error:
            read()
        assert "\n" not in str(error.value) and "\x1b" not in str(error.value)


def test_nothing_is_read_whole_on_its_word(original, tmp_path):
    path = tmp_path / "a.pt2"
    original.write(path)
    _bomb(path)
    code = (
        "import pathlib, resource, sys\n"
        "from pipeline.program.archive_facts import describe_archive\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "try: describe_archive(pathlib.Path(sys.argv[1]))\n"
        "except Exception as error: print(type(error).__name__)\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    out = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True)
    name, grown = out.stdout.split()
    assert name == "SourceError" and int(grown) < 20_000  # kB


# JSON

JSONS = {
    "not UTF-8": b"\xff\xfe{}",
    "deep": b"[" * 100_000,
    "deep mapping": b'{"a":' * 50_000,
    "long number": b'{"schema_version": {"major": 8, "minor": ' + b"9" * 5000 + b"}}",
    "NaN": b'{"schema_version": {"major": 8, "minor": NaN}}',
    "number": b"3",
    "null": b"null",
    "list": b"[]",
    "surrogate": b'{"schema_version": {"major": 8, "minor": 20}, "torch_version": "\\ud800"}',
    "other version": b'{"schema_version": {"major": 5, "minor": 1}, "torch_version": "\\u001b"}',
}


@pytest.mark.parametrize("member", ["models/m.json", "data/weights/m_weights_config.json"])
@pytest.mark.parametrize("text", JSONS.values(), ids=JSONS)
def test_json_that_is_no_program_is_one_line(original, text, member, tmp_path):
    archive = original.copy()
    archive.members[member] = text
    for line in refusals(archive, tmp_path / "a.pt2"):
        assert "\x1b" not in line


# Files that aren't archives


def test_pipes_devices_and_folders_are_refused_without_waiting(tmp_path):
    os.mkfifo(tmp_path / "pipe.pt2")
    os.mkfifo(tmp_path / "pipe.py")
    (tmp_path / "device.pt2").symlink_to("/dev/zero")
    (tmp_path / "folder.pt2").mkdir()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.path.relpath(tmp_path / "socket.pt2"))
        found, wrong = find_sources(tmp_path)
    assert not found
    assert sorted(wrong) == ["device", "folder", "pipe", "socket"]
    assert all(f"{tmp_path.name}/{name}.p" in line for name, line in wrong.items())


# Input files


def _npz(path, shape, dtype="<f4", data=b"1234"):
    header = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}"
    text = header.encode().ljust(117) + b"\n"
    with zipfile.ZipFile(path, "w") as members:
        members.writestr("x.npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + data)


def _pt(path, value, change=lambda name, data: (name, data)):
    torch.save(value, path)
    with zipfile.ZipFile(path) as old:
        members = {name: old.read(name) for name in old.namelist()}
    with zipfile.ZipFile(path, "w") as new:
        for name, data in members.items():
            new.writestr(*change(name, data))


def _claimed(count):
    """Make a storage claim more elements than its member has."""

    def change(name, data):
        if name.endswith("data.pkl"):
            data = data.replace(b"K\x04tq", b"\x8a\x05" + struct.pack("<Q", count)[:5] + b"tq")
        return name, data

    return change


class Runs:
    def __reduce__(self):
        return pytest.fail, ("something was unpickled",)


FILES = {
    "claims.npz": lambda path: _npz(path, (10_000_000_000,)),
    "batches.npz": lambda path: _npz(path, (1 << 60, 0), data=b""),
    "negative.npz": lambda path: _npz(path, (-1,)),
    "objects.npz": lambda path: _npz(path, (1,), "|O"),
    "text.npz": lambda path: _npz(path, (1,), "<U1"),
    "nested.npz": lambda path: _npz(path, "(" * 3000),
    "array.npz": lambda path: (
        numpy.save(path.with_suffix(".npy"), numpy.ones(3)) or path.with_suffix(".npy").rename(path)
    ),
    "empty.npz": lambda path: path.write_bytes(b""),
    "empty.pt": lambda path: path.write_bytes(b""),
    "empty.safetensors": lambda path: path.write_bytes(b""),
    "claims.safetensors": lambda path: path.write_bytes(
        struct.pack("<Q", 63)
        + b'{"x":{"dtype":"F32","shape":[9999999999],"data_offsets":[0,4]}}'
        + b"1234"
    ),
    "legacy.pt": lambda path: torch.save(
        [(torch.ones(4),)], path, _use_new_zipfile_serialization=False
    ),
    "claims.pt": lambda path: _pt(path, [(torch.ones(4),)], _claimed(10_000_000_000)),
    "repeats.pt": lambda path: torch.save([(torch.ones(1).expand(1 << 40),)], path),
    "code.pt": lambda path: torch.save([Runs()], path),
}


@pytest.mark.parametrize("name", FILES)
def test_an_input_file_is_not_believed(name, tmp_path):
    class Plain(torch.nn.Module):
        def forward(self, x):
            return x + 1

    program = export(Plain(), (torch.ones(4),))
    FILES[name](tmp_path / name)
    with pytest.raises(PipelineError, match=rf"^{name}") as error:
        read_file(tmp_path / name, name, program)
    assert "\n" not in str(error.value)


def test_values_that_repeat_themselves_are_bounded(tmp_path):
    value = [1.0]
    for _ in range(40):
        value = [value] * 10
    torch.save(value, tmp_path / "x.pt")
    with pytest.raises(PipelineError, match="more than 1000000 values"):
        read_file(tmp_path / "x.pt", "x.pt", None)


def test_example_inputs_are_not_believed(original, tmp_path):
    archive = original.copy()
    _pt(tmp_path / "x.pt", ((torch.ones(4),), {}), _claimed(10_000_000_000))
    archive.members[f"data/sample_inputs/{ENTRY}.pt"] = (tmp_path / "x.pt").read_bytes()
    archive.write(tmp_path / "a.pt2")
    with pytest.raises(SourceError, match="has a storage of 40000000000 bytes, but contains 16"):
        load_example_inputs(tmp_path / "a.pt2", ENTRY)


@pytest.mark.parametrize(
    ("kind", "value", "remedy"),
    [
        ("operator", "executorch.exir.dialects.edge._ops.aten.add.Tensor", "before to_edge"),
        ("path", 'a"b.weight', "rename it"),
        ("path", "a\\.weight", "rename it"),
        ("path", "__w__.weight", "rename it"),
    ],
)
def test_what_torch_would_load_is_refused_with_a_remedy(kind, value, remedy):
    with pytest.raises(ValueError, match=remedy):
        archive_grammar.check_document(kind, value)


# Mutations


def test_mutated_archives_are_read_or_refused(original, tmp_path):
    """`python -m tests.trust.mutations 5000` tries more."""
    outcomes = [attempt(mutate(original, seed), tmp_path, ENTRY) for seed in range(35)]
    assert {each for each in outcomes if each not in ("read", "refused")} == set()
    assert outcomes.count("refused") > 15


# Traces


def test_only_lines_of_what_was_exported_are_quoted(tmp_path):
    for name in ("models/m.py", "models/key.py", ".env", "partition_configs/p.yaml"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"secret of {name}\n")
    (tmp_path / "models" / "link.py").symlink_to(tmp_path / ".env")
    names = (".env", "models/m.py", "models/key.py", "models/link.py", "partition_configs/p.yaml")
    left = [{"line": f"x + y  # {name}:1, in forward"} for name in names]
    report = {
        "package": "p",
        "ok": True,
        "failures": [],
        "settings": {},
        "methods": [],
        "delegation": {"m": {"left": left}},
    }
    assert named_files(report) == {}
    exported = ("models/m.py", "models/link.py", ".env")
    report["sources"] = {name: hash_file(tmp_path / name) for name in exported}
    assert list(named_files(report)) == ["models/link.py", "models/m.py"]
    report["sources"]["partition_configs/p.yaml"] = "of a config"
    assert list(named_files(report)) == ["models/link.py", "models/m.py"]
    placed = {**report, "places": {"methods.m": "partition_configs/p.yaml:1"}}
    assert named_files(placed)["partition_configs/p.yaml"] == "of a config"
    read = read_sources(tmp_path, report)
    assert read == {"models/m.py": "secret of models/m.py\n"}
