"""The key of a partition: exactly what XNNPACK's preprocess function reads of it.

XNNPACK itself decides what matters: if something doesn't, changing it must give the same bytes in a
real preprocess call.
"""

import copy
import os
import random

import pytest
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.backends.xnnpack.serialization.xnnpack_graph_schema import (
    ConstantDataOffset,
    OutputMinMax,
    XNNAbs,
    XNNGraph,
    XNode,
)
from executorch.backends.xnnpack.serialization.xnnpack_graph_serialize import (
    serialize_xnnpack_binary,
)
from executorch.backends.xnnpack.xnnpack_preprocess import XnnpackBackend
from executorch.exir import to_edge
from executorch.exir.backend.compile_spec_schema import CompileSpec
from executorch.exir.dialects._ops import ops
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.export import Dim, export
from torch.export.graph_signature import InputKind, OutputKind

from pipeline.backends import BACKENDS, CacheScope
from pipeline.compile.lower import lower
from pipeline.features.preprocess_cache.key import UndescribableError, describe
from pipeline.features.preprocess_cache.records import with_handles
from pipeline.features.quantization.quantize import quantize
from pipeline.features.xnnpack import cache_key as xnnpack_sight
from pipeline.features.xnnpack.entries import XnnpackQuantize
from tests.support.bench import REPOSITORY
from tests.support.matrix import in_tiers
from tests.support.programs import Plain, Shared
from tests.support.resident import run_python

EVERYTHING = CacheScope()
XNNPACK = BACKENDS["xnnpack"].preprocessing.make_cache_scope()


class Attention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.query, self.key = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8, bias=False)
        self.norm = torch.nn.LayerNorm(8)

    def forward(self, x):
        scores = self.query(x) @ self.key(x).transpose(-2, -1)
        return self.norm(x + torch.softmax(scores, -1) @ x), scores


class Convolution(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.bn = torch.nn.Conv2d(3, 4, 3, bias=False), torch.nn.BatchNorm2d(4)
        self.other_bn, self.slope = torch.nn.BatchNorm2d(4), torch.nn.PReLU(1)
        self.out = torch.nn.Linear(4, 2)

    def forward(self, x):
        x = self.other_bn(torch.sigmoid(self.bn(self.conv(x))))
        x = torch.nn.functional.max_pool2d(self.slope(x), 2, 2)
        return self.out(x.mean((2, 3))), torch.cat([x, x * 2], 1)


class Plainer(torch.nn.Module):
    """Without batch norm, which is slow to quantize."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.out = torch.nn.Conv2d(3, 4, 3), torch.nn.Linear(4, 2)

    def forward(self, x):
        x = torch.relu(self.conv(x))
        return self.out(x.mean((2, 3))), torch.cat([x, x], 1)


def attention(**options):
    return export(Attention().eval().requires_grad_(False), (torch.randn(2, 6, 8),), **options)


def convolution(model=Convolution):
    return export(model().eval().requires_grad_(False), (torch.randn(1, 3, 8, 8),))


def quantized(program, dynamic):
    return quantize(program, XnnpackQuantize(quantizer="xnnpack", dynamic=dynamic), [])


PROGRAMS = {
    "float": attention,
    "strict": lambda: attention(strict=True),
    "dynamic sizes": lambda: attention(dynamic_shapes=({1: Dim("n", min=2, max=16)},)),
    "no bound": lambda: attention(dynamic_shapes=({1: Dim("n", min=2)},)),
    "convolution": convolution,
    "static int8": lambda: quantized(convolution(Plainer), False),
    "dynamic int8": lambda: quantized(attention(), True),
}


@pytest.fixture(scope="module")
def partitions():
    """Return every program's partitions with their compile specs, as the backend gets them."""
    made = {}

    def of(name):
        if name not in made:
            made[name] = received(PROGRAMS[name]())
        return made[name]

    return of


def received(program):
    seen = []
    original = XnnpackBackend.preprocess

    def recording(partition, specs):
        seen.append((copy.deepcopy(partition), specs))
        return original(partition, specs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(XnnpackBackend, "preprocess", staticmethod(recording))
        lower({"forward": program}, {"forward": [XnnpackPartitioner()]})
    return seen


def digest_of(program, specs=(), sight=XNNPACK):
    return describe(program, specs, sight).digest


def preprocess(program, specs):
    """Return the result and its key, as the cache sees them."""
    program = copy.deepcopy(program)
    partition = describe(program, specs, XNNPACK)
    return partition, XnnpackBackend.preprocess(program, specs)


# What must not matter: names, other metadata, debug handles


def rename(program, generator):
    """Rename all nodes, parameters and buffers, and reorder parameters and buffers."""
    names = {}

    def another(name):
        dot = "." if "." in name else "_"
        return names.setdefault(name, f"n{generator.randrange(10**6)}{dot}n{len(names)}")

    for node in program.graph.nodes:
        if node.op != "output":
            node.name = another(node.name)
        if node.op == "placeholder":
            node.target = another(node.target)
    signature = copy.deepcopy(program.graph_signature)
    for spec in (*signature.input_specs, *signature.output_specs):
        spec.arg.name = names[spec.arg.name]
        spec.target = spec.target and another(spec.target)
    program._graph_signature = signature
    for table in (program._state_dict, program._constants):
        entries = [(another(name), tensor) for name, tensor in table.items()]
        generator.shuffle(entries)
        table.clear()
        table.update(entries)
    program.graph_module.recompile()


def change_metadata(program, generator):
    for node in program.graph.nodes:
        sources = [source for _, source in xnnpack_sight._sources(node)]
        modules = node.meta.get("nn_module_stack", {})
        for key in XNNPACK.unread - {"nn_module_stack", "source_fn_stack", "tensor_meta"}:
            node.meta[key] = f"linear.{generator.random()}"
        node.meta["stack_trace"], node.meta["seq_nr"] = f"line {generator.random()}", 7
        node.meta["torch_fn"] = ("linear_1", "builtin_function_or_method.linear")
        node.meta["nn_module_stack"] = {  # other instances of the same classes
            f"of {key}": (f"other.{name}", kind) for key, (name, kind) in modules.items()
        }
        if modules and not any(
            "linear" in xnnpack_sight._qualified_name(s).lower() for s in sources
        ):
            node.meta["nn_module_stack"]["in"] = ("in", "some.OtherModule")


def change_handles(program, generator):
    new = {}
    for node in program.graph.nodes:
        old = node.meta.get("debug_handle")
        if node.op in ("placeholder", "output"):
            node.meta["debug_handle"] = generator.randrange(1, 10**6)
        elif old is not None:
            drawn = generator.randrange(10**6)  # all different, none an old handle
            node.meta["debug_handle"] = new.setdefault(old, 10**6 + 1000 * drawn + len(new))


HARMLESS = (rename, change_metadata, change_handles)


@pytest.mark.parametrize(
    "name",
    in_tiers(PROGRAMS, ["dynamic sizes", "dynamic int8"], ["float"]),
)
def test_what_is_left_out_does_not_change_a_byte(name, partitions):
    generator = random.Random(name)
    for program, specs in partitions(name):
        partition, result = preprocess(program, specs)
        changed = copy.deepcopy(program)
        for change in HARMLESS:
            change(changed, generator)
            assert describe(changed, specs, XNNPACK).digest == partition.digest, change
        again, expected = preprocess(changed, specs)
        assert again.handles != partition.handles
        assert with_handles(result, partition.handles, again.handles, XNNPACK) == expected


@pytest.mark.parametrize("change", HARMLESS)
def test_a_backend_of_which_nothing_is_known_sees_everything(change, partitions):
    program, specs = partitions("float")[0]
    changed = copy.deepcopy(program)
    change(changed, random.Random(0))
    assert (
        describe(changed, specs, EVERYTHING).digest != describe(program, specs, EVERYTHING).digest
    )


@pytest.mark.parametrize(
    ("name", "sight"),
    [
        ("float", XNNPACK),
        pytest.param("dynamic sizes", XNNPACK, marks=pytest.mark.slow),
        pytest.param("dynamic int8", XNNPACK, marks=pytest.mark.slow),
        pytest.param("strict", XNNPACK, marks=[pytest.mark.slow, pytest.mark.release]),
        # This includes the ids of modules.
        pytest.param("strict", EVERYTHING, marks=pytest.mark.slow),
    ],
)
def test_exporting_again_changes_no_digest(name, sight, partitions):
    digests = [describe(*each, sight).digest for each in partitions(name)]
    torch.manual_seed(0)
    again = received(PROGRAMS[name]())
    assert [describe(*each, sight).digest for each in again] == digests


# What must matter


def node_of(program, part):
    return next(n for n in program.graph.nodes if n.op == "call_function" and part in str(n.target))


def first_input(program):
    inputs = program.graph_signature.user_inputs
    return next(node for node in program.graph.nodes if node.name in inputs)


def parameter(program):
    return next(iter(program.state_dict))


def refake(node, make):
    """Replace `val` by another one, made in the same way as the old one."""
    with node.meta["val"].fake_mode:
        node.meta["val"] = make(node.meta["val"])


def operator_(program):
    node_of(program, "add").target = ops.edge.aten.sub.Tensor


def overload(program):
    node_of(program, "add").target = ops.edge.aten.add.Scalar


def argument(program):
    node = node_of(program, "softmax")
    node.args = (node.args[0], 0, *node.args[2:])


def type_of_argument(kind):
    def change(program):
        node = node_of(program, "softmax")
        node.args = (node.args[0], kind(node.args[1]), *node.args[2:])

    return change


def list_of_arguments(program):
    node = node_of(program, "view_copy")
    node.args = (node.args[0], tuple(node.args[1]))


def keyword(program):
    node_of(program, "add").kwargs = {"alpha": 2}


def wiring(program):
    """Swap two tensors of the same shape."""
    node = node_of(program, "add")
    node.args = (node.args[1], node.args[0])


def order_of_uses(program):
    node = first_input(program)
    assert len(node.users) > 1
    first = next(iter(node.users))
    del node.users[first]
    node.users[first] = None


def order_of_outputs(program):
    output = program.graph.output_node()
    output.args = (output.args[0][::-1],)
    program.graph_signature.output_specs.reverse()


def dtype(program):
    refake(first_input(program), lambda value: value.to(torch.float16))


def shape(program):
    refake(first_input(program), lambda value: value.new_empty(3, *value.shape[1:]))


def stride(program):
    refake(first_input(program), lambda value: value.mT.contiguous().mT)


def gradient(program):
    refake(first_input(program), lambda value: value.clone().requires_grad_(True))


def known_value(make):
    def change(program):
        node = first_input(program)
        refake(node, torch.clone)  # copies of a program share their fake tensors
        node.meta["val"].constant = make(node.meta["val"].shape)

    return change


def content(program):
    program.state_dict[parameter(program)].view(torch.uint8).reshape(-1)[-1] ^= 1


def storage(program):
    name = parameter(program)
    tensor = program.state_dict[name].detach()
    longer = torch.cat([tensor, tensor])
    program._state_dict[name] = torch.nn.Parameter(longer[: len(tensor)], requires_grad=False)


def aliases(program):
    first, second, *_ = (n for n, t in program.state_dict.items() if t.shape == (8, 8))
    program._state_dict[second] = program.state_dict[first]


def equal_copies(program):
    aliases(program)
    first, second, *_ = (n for n, t in program.state_dict.items() if t.shape == (8, 8))
    program._state_dict[second] = copy.deepcopy(program.state_dict[first])


def kind_of_input(program):
    spec = program.graph_signature.input_specs[0]
    assert spec.kind is InputKind.PARAMETER
    spec.kind, spec.persistent = InputKind.BUFFER, True


def mutation(program):
    spec = program.graph_signature.output_specs[0]
    spec.kind, spec.target = OutputKind.BUFFER_MUTATION, parameter(program)


def other_mutation(program):
    mutation(program)
    program.graph_signature.output_specs[0].target = list(program.state_dict)[1]


def handle_of_another(program):
    first, second, *_ = (n for n in program.graph.nodes if n.op == "call_function")
    assert first.meta["debug_handle"] != second.meta["debug_handle"]
    second.meta["debug_handle"] = first.meta["debug_handle"]


def no_handle(program):
    del node_of(program, "softmax").meta["debug_handle"]


def fixed_handle(number):
    def change(program):
        node_of(program, "softmax").meta["debug_handle"] = number

    return change


def known_metadata(program):
    node_of(program, "softmax").meta["custom"] = {"delegate_constant_tag": "elsewhere"}


def unknown_metadata(program):
    node_of(program, "softmax").meta["of a pass that is yet to be written"] = 1


def as_linear_layer(program):
    node_of(program, "softmax").meta["nn_module_stack"] = {"m": ("m", torch.nn.Linear)}


def as_linear_function(program):
    node_of(program, "softmax").meta["source_fn_stack"] = [("l", torch.nn.functional.linear)]


MATTER = {
    "an operator": operator_,
    "its overload": overload,
    "an argument": argument,
    "a float for an int": type_of_argument(float),
    "a bool for an int": type_of_argument(bool),
    "a string for an int": type_of_argument(str),
    "a tuple for a list": list_of_arguments,
    "a keyword": keyword,
    "which tensor goes where": wiring,
    "which use comes first": order_of_uses,
    "dtype": dtype,
    "shape": shape,
    "stride": stride,
    "whether it needs a gradient": gradient,
    "a value known at export": known_value(torch.zeros),
    "another such value": known_value(torch.ones),
    "one bit of a weight": content,
    "storage behind a weight": storage,
    "weights that are one": aliases,
    "weights that are equal": equal_copies,
    "what an input is": kind_of_input,
    "a mutation": mutation,
    "another mutation": other_mutation,
    "handles that are one": handle_of_another,
    "a missing handle": no_handle,
    "the handle 0": fixed_handle(0),
    "the handle 65535": fixed_handle(65535),
    "metadata that is read": known_metadata,
    "metadata of which nothing is known": unknown_metadata,
    "being part of a linear layer": as_linear_layer,
    "being part of a linear function": as_linear_function,
}


@pytest.fixture(scope="module")
def whole():
    """Return a whole model as one partition, for tests to change."""
    program = to_edge(attention()).exported_program()
    for number, node in enumerate(program.graph.nodes):
        if node.op == "call_function":
            node.meta["debug_handle"] = 100 + number
    return program


@pytest.mark.parametrize("sight", [XNNPACK, EVERYTHING], ids=["xnnpack", "everything"])
def test_every_change_of_what_is_seen_changes_the_digest(whole, sight):
    seen = {digest_of(whole, sight=sight): "nothing"}
    for name, change in MATTER.items():
        changed = copy.deepcopy(whole)
        change(changed)
        digest = digest_of(changed, sight=sight)
        assert digest not in seen, f"{name}: as after changing {seen.get(digest)}"
        seen[digest] = name


def test_a_copy_has_the_same_digest(whole):
    assert digest_of(copy.deepcopy(whole)) == digest_of(whole)


def scaled(limit=None, rows=3):
    """Return a linear layer with a dynamic number of rows."""
    rows_of = Dim("rows", min=2) if limit is None else Dim("rows", min=2, max=limit)
    model = Plain(Shared()).eval().requires_grad_(False)
    return export(model, (torch.randn(rows, 8),), dynamic_shapes=({0: rows_of},))


def test_bounds_of_a_dynamic_size_count():
    first, second = (to_edge(scaled(limit)).exported_program() for limit in (8, 9))
    assert digest_of(first) != digest_of(second)


def test_without_a_bound_the_size_at_export_is_in_the_payload():
    """It must therefore be in the digest too."""
    (first, *_), (second, *_) = (received(scaled(rows=rows)) for rows in (3, 5))
    (one, result), (two, other) = preprocess(*first), preprocess(*second)
    assert with_handles(result, one.handles, two.handles, XNNPACK) != other
    assert one.digest != two.digest


def test_all_of_a_buffer_s_storage_is_in_the_payload(partitions):
    """It must therefore be in the digest too."""
    program, specs, name = next(
        (program, specs, name)
        for program, specs in partitions("static int8")
        for name, tensor in program.state_dict.items()
        if tensor.dtype is torch.int8 and tensor.dim() == 2
    )
    weight = program.state_dict[name]
    views = []
    for last in (0, 1):
        viewing = copy.deepcopy(program)
        tail = torch.full_like(weight, last)
        viewing._state_dict[name] = torch.cat([weight, tail])[: len(weight)]
        views.append(preprocess(viewing, specs))
    (one, result), (two, other) = views
    assert result.data_store_output != other.data_store_output
    assert one.digest != two.digest


class DataDependent(torch.nn.Module):
    def forward(self, x):
        chosen = x.nonzero()
        torch._check(chosen.shape[0] < 100)
        return chosen * 2


def test_a_size_that_depends_on_data_has_no_digest():
    program = to_edge(export(DataDependent(), (torch.randn(3, 8),))).exported_program()
    with pytest.raises(UndescribableError, match="depends on data"):
        digest_of(program)


def test_what_cannot_be_described_has_no_digest(whole):
    program = copy.deepcopy(whole)
    next(iter(program.graph.nodes)).meta["odd"] = object()
    with pytest.raises(UndescribableError, match="object"):
        digest_of(program)


def test_facts_explain(whole):
    specs = [CompileSpec("key", b"value")]
    facts = describe(whole, specs, XNNPACK).facts
    assert facts["nodes"] == len(whole.graph.nodes)
    assert facts["operators"]["aten.bmm.default"] == 2
    changed = copy.deepcopy(whole)
    content(changed)
    other = describe(changed, [CompileSpec("key", b"other")], XNNPACK).facts
    assert {name for name in facts if facts[name] != other[name]} == {"constants", "compile_specs"}


@pytest.mark.slow
def test_digest_is_the_same_in_another_process(partitions):
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from tests.features.preprocess_cache.test_key import PROGRAMS, digest_of, received\n"
        "print(*(digest_of(*each) for each in received(PROGRAMS['float']())))"
    )
    seed = {**os.environ, "PYTHONHASHSEED": "7"}
    done = run_python("-c", code, str(REPOSITORY), env=seed)
    assert done.returncode == 0, done.stderr
    expected = [digest_of(*each) for each in partitions("float")]
    assert done.stdout.split()[-len(expected) :] == expected


# Names that matter after all


class Clashing(Convolution):
    """Has a parameter with the name that folding batch norm gives to a new one."""

    def __init__(self):
        super().__init__()
        self.conv_weight_fused_bn = torch.nn.Parameter(torch.ones(2))

    def forward(self, x):
        return super().forward(x)[0] * self.conv_weight_fused_bn


@pytest.mark.parametrize(
    "model, expected",
    [
        (Convolution(), False),
        (Clashing(), True),
        (torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4)), True),
        (torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU()), False),
    ],
    ids=["apart", "clashing", "no identifier", "no batch norm"],
)
def test_names_count_where_new_ones_are_made_of_them(model, expected):
    model = model.eval().requires_grad_(False)
    program = to_edge(export(model, (torch.randn(1, 3, 8, 8),))).exported_program()
    assert xnnpack_sight.names_count(program) is expected
    changed = copy.deepcopy(program)
    rename(changed, random.Random(0))
    assert (digest_of(changed) != digest_of(program)) is expected


# Debug handles in payloads


def payload(handles):
    """Return a payload as XNNPACK writes it, for nodes with these debug handles."""
    nodes = [
        XNode(XNNAbs(input_id=i, output_id=i + 1, flags=0), handle, OutputMinMax("-inf", "+inf"))
        for i, handle in enumerate(handles)
    ]
    graph = XNNGraph("0", nodes, [], 0, [], [], [ConstantDataOffset(0, 0)])
    return serialize_xnnpack_binary(graph, bytearray())


HANDLES = st.integers(1, 2**32 - 1).filter(lambda handle: handle not in XNNPACK.fixed_handles)


@settings(max_examples=40)
@given(
    st.lists(st.tuples(HANDLES, HANDLES), min_size=1, max_size=5, unique_by=lambda pair: pair[0]),
    st.data(),
)
def test_remapped_handles_are_those_of_a_rebuild(pairs, data):
    mapping = dict(pairs)
    known = st.sampled_from([*mapping, *XNNPACK.fixed_handles])
    old = data.draw(st.lists(known, max_size=8))
    new = [mapping.get(handle, handle) for handle in old]
    assert xnnpack_sight.remap_handles(payload(old), mapping) == payload(new)


@pytest.mark.parametrize("wrong", [{}, {7: 0}, {7: 65535}, {7: -1}, {7: 2**32}])
def test_what_cannot_be_remapped_exactly_is_refused(wrong):
    assert xnnpack_sight.remap_handles(payload([7]), wrong) is None


def test_other_payloads_are_refused():
    assert xnnpack_sight.remap_handles(b"something else", {7: 8}) is None
