"""The add/sub backend: its text, its compiler, its runtime, and packages that are lowered to it."""

import ast
import inspect
import json
import math
import subprocess
import sys

import pytest
import torch
from executorch.exir import EdgeCompileConfig, to_edge
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch.export import Dim, export

from pipeline.backends import BACKENDS, PartitionerSpec
from pipeline.backends.add_sub import compiler, runtime, text
from pipeline.backends.add_sub.compiler import preprocess
from pipeline.backends.add_sub.partitioner import AddSubPartitioner
from pipeline.backends.add_sub.runtime import AddSubRuntime
from pipeline.backends.delegate_runtime import DelegateError
from pipeline.compile.inspect.delegation import describe_delegation
from pipeline.compile.lower import lower
from pipeline.compile.module_filter import make_filtered_partitioners
from pipeline.run.prove.subject import lines_of_handles
from pipeline.store import digest
from pipeline.store.errors import PipelineError
from pipeline.validate.package import validate_package
from tests.support.lowerable import (
    bench_for,
    both,
    check_delegated,
    check_fresh_checkout_hits,
    check_ran,
    check_same_bytes,
    manifest_of,
    plan_of,
)


def edge_program(module, arguments, dynamic_shapes=None):
    module = module.eval().requires_grad_(False)
    return to_edge(export(module, arguments, dynamic_shapes=dynamic_shapes)).exported_program()


def compiled(module, arguments, dynamic_shapes=None):
    return preprocess(edge_program(module, arguments, dynamic_shapes), [])


def data_of(result):
    """The named data of a result, as the interpreter hands them over."""
    store = result.data_store_output
    pairs = store.pte_data.items() if store is not None else ()
    return {key: bytes(store.buffers[entry.buffer_index]) for key, entry in pairs}


def loaded(result):
    return AddSubRuntime().init(result.processed_bytes, (), data_of(result))


def run(result, *inputs):
    return AddSubRuntime().execute(loaded(result), inputs)


def same(actual, expected):
    """Bit for bit, but that any NaN is any other."""
    equal = torch.allclose(actual, expected, rtol=0, atol=0, equal_nan=True)
    signs = not expected.is_floating_point() or torch.equal(
        torch.signbit(actual.nan_to_num()), torch.signbit(expected.nan_to_num())
    )
    return actual.dtype == expected.dtype and actual.shape == expected.shape and equal and signs


def computed(operation, value, kind, *operands, **rest):
    """An instruction that computes a value."""
    return {"operation": operation, "value": value, "type": kind, "operands": operands, **rest}


class Golden(torch.nn.Module):
    """Everything that the text can say."""

    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.tensor([0.5, -2.0, math.nan]))
        self.register_buffer("offset", torch.tensor([[1], [-2]]))

    def forward(self, x, y, i):
        shifted = torch.sub(x, self.scale, alpha=2.5)
        counted = torch.add(i, self.offset, alpha=-3)
        return shifted, counted, x.double() + 1, y - y


GOLDEN = [
    {"operation": "constant", "value": "v0", "type": "float32[3]", "data": "scale"},
    {"operation": "constant", "value": "v1", "type": "int64[2,1]", "data": "offset"},
    {"operation": "constant", "value": "v2", "type": "int64[]", "data": "one"},
    {"operation": "input", "value": "v3", "type": "float32[?,3]"},
    {"operation": "input", "value": "v4", "type": "bfloat16[3]"},
    {"operation": "input", "value": "v5", "type": "int64[3]"},
    computed("sub", "v6", "float32[?,3]", "v3", "v0", alpha=2.5, handle=1),
    computed("add", "v7", "int64[2,3]", "v5", "v1", alpha=-3, handle=2),
    computed("cast", "v8", "float64[?,3]", "v3", handle=3),
    computed("cast", "v9", "float64[]", "v2", handle=4),
    computed("add", "v10", "float64[?,3]", "v8", "v9", handle=4),
    computed("sub", "v11", "bfloat16[3]", "v4", "v4", handle=5),
    {"operation": "output", "operands": ["v6", "v7", "v10", "v11"]},
]
DATA = {
    f"add_sub/{digest.hash_bytes(data)}": data
    for tensor in (torch.tensor([0.5, -2.0, math.nan]), torch.tensor([[1], [-2]]), torch.tensor(1))
    for data in [tensor.numpy().tobytes()]
}
GOLDEN = [{**line, "data": key} for line, key in zip(GOLDEN[:3], DATA, strict=True)] + GOLDEN[3:]


@pytest.fixture(scope="module")
def golden():
    arguments = (torch.randn(2, 3), torch.randn(3).bfloat16(), torch.arange(3))
    shapes = ({0: Dim("rows", min=1, max=9)}, None, None)
    return compiled(Golden(), arguments, shapes)


def sealed(lines):
    """A payload of these instructions, with the right checksum."""
    return text.seal("\n".join(json.dumps(line, separators=(",", ":")) for line in lines).encode())


# The text


def test_a_partition_becomes_this_text(golden):
    assert golden.processed_bytes == sealed(GOLDEN)
    assert data_of(golden) == DATA


def test_debug_handles_are_found_by_the_line(golden):
    _, *lines = golden.processed_bytes.splitlines()
    handles = {n: json.loads(line).get("handle") for n, line in enumerate(lines, 2)}
    expected = {number: handle for number, (handle,) in golden.debug_handle_map.items()}
    assert {number: handle for number, handle in handles.items() if handle} == expected


@pytest.mark.parametrize(
    "change",
    [
        {"operation": "mul"},
        {"type": "float8[?,3]"},
        {"type": "float32"},
        {"operands": "v3"},
        {"handle": "1"},
        {"alpha": "__import__('os')"},
        {"alpha": [1]},
        {"more": 1},
    ],
)
def test_a_line_that_is_no_instruction_is_refused(change):
    lines = [*GOLDEN[:6], GOLDEN[6] | change, *GOLDEN[7:]]
    with pytest.raises(DelegateError, match="line 8 of the payload is no instruction: b'"):
        AddSubRuntime().init(sealed(lines), (), DATA)


def test_a_line_that_reads_what_none_before_it_defines_is_refused():
    lines = [*GOLDEN[:6], GOLDEN[6] | {"operands": ["v3", "v6"]}, *GOLDEN[7:]]
    with pytest.raises(DelegateError, match="line 8 of the payload reads v6, which no line"):
        AddSubRuntime().init(sealed(lines), (), DATA)
    lines = [*GOLDEN[:-1], {"operation": "output", "operands": ["v99"]}]
    with pytest.raises(DelegateError, match="line 14 of the payload reads v99"):
        AddSubRuntime().init(sealed(lines), (), DATA)


def test_a_constant_without_a_type_is_refused():
    lines = [{"operation": "constant", "value": "v0", "data": "key"}]
    with pytest.raises(DelegateError, match="can't be made of the 0 bytes of key"):
        AddSubRuntime().init(sealed(lines), (), {})


def test_an_alpha_that_does_not_fit_is_told_with_its_debug_handle():
    lines = [
        {"operation": "input", "value": "v0", "type": "int64[2]"},
        computed("add", "v1", "int64[2]", "v0", "v0", alpha=0.5, handle=7),
        {"operation": "output", "operands": ["v1"]},
    ]
    program = AddSubRuntime().init(sealed(lines), (), {})
    with pytest.raises(DelegateError, match=r"^add: ") as caught:
        AddSubRuntime().execute(program, (torch.ones(2).long(),))
    assert caught.value.debug_handle == 7


@settings(max_examples=200)
@given(data=st.data())
def test_a_payload_that_was_cut_or_changed_is_refused(golden, data):
    payload = golden.processed_bytes
    place = data.draw(st.integers(0, len(payload) - 1))
    if data.draw(st.booleans()):
        damaged = payload[:place]
    else:
        byte = data.draw(st.integers(0, 255).filter(lambda each: each != payload[place]))
        damaged = payload[:place] + bytes([byte]) + payload[place + 1 :]
    with pytest.raises(DelegateError, match="was cut or changed"):
        AddSubRuntime().init(damaged, (), DATA)


@settings(max_examples=200)
@given(st.binary(max_size=80))
def test_any_bytes_are_refused(data):
    with pytest.raises(DelegateError):
        AddSubRuntime().init(data, (), {})


def test_named_data_must_be_there_and_fit(golden):
    key, *_ = DATA
    for data in (b"", bytes(11), bytes(16)):
        with pytest.raises(
            DelegateError, match=rf"float32\[3\] can't be made of the {len(data)} b"
        ):
            AddSubRuntime().init(golden.processed_bytes, (), {**DATA, key: data})


def test_nothing_is_evaluated_or_unpickled():
    for module in (text, compiler, runtime):
        names = {
            n.id for n in ast.walk(ast.parse(inspect.getsource(module))) if isinstance(n, ast.Name)
        }
        assert not names & {"eval", "exec", "compile", "pickle", "marshal", "__import__"}


# The compiler


class Unsupported(torch.nn.Module):
    def forward(self, x, y):
        total = x + y
        scaled = total * y
        return torch.sin(scaled) - x


def line_of(function, code):
    lines, start = inspect.getsourcelines(function)
    return start + next(n for n, line in enumerate(lines) if code in line)


def test_operators_without_an_instruction_are_told_with_their_lines():
    with pytest.raises(PipelineError) as caught:
        compiled(Unsupported(), (torch.ones(2), torch.ones(2)))
    first, second = str(caught.value).splitlines()
    here = "test_add_sub.py"
    place = f"{here}:{line_of(Unsupported.forward, 'total * y')}, in Unsupported.forward"
    assert first.startswith(
        "add_sub has no instruction for aten.mul.Tensor: scaled = total * y  # "
    )
    assert first.endswith(place)
    assert "aten.sin" in second and f"{here}:{line_of(Unsupported.forward, 'sin')}" in second


class Double(torch.nn.Module):
    def forward(self, x):
        return x + x


@pytest.mark.parametrize(
    ("value", "what"),
    [
        (torch.ones(2, dtype=torch.complex64), "takes no complex64 tensor in aten.add.Tensor"),
        (torch.ones(1, 2, 3, 4).to(memory_format=torch.channels_last), "dimensions are in dis"),
    ],
)  # fmt: skip
def test_values_that_the_text_cannot_say_are_refused(value, what):
    config = EdgeCompileConfig(_check_ir_validity=False)
    program = to_edge(export(Double(), (value,)), compile_config=config).exported_program()
    with pytest.raises(PipelineError, match=what):
        preprocess(program, [])


def test_no_bits_of_a_constant_are_lost():
    payload = b"\x01\x00\xc0\x7f\x00\x00\xc0\x7f"  # a NaN of its own, and the usual one

    class Nan(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("odd", torch.frombuffer(bytearray(payload), dtype=torch.float32))

        def forward(self, x):
            return x + self.odd

    result = compiled(Nan(), (torch.ones(2),))
    assert loaded(result).constants["v0"].view(torch.uint8).numpy().tobytes() == payload


def test_constants_are_written_by_their_values_not_by_their_strides():
    class Column(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("few", torch.arange(12.0).reshape(3, 4)[:, 1])
            self.register_buffer("many", torch.arange(80.0).reshape(40, 2)[:, 1])

        def forward(self, x, y):
            return x + self.few, y - self.many

    inputs = (torch.ones(3), torch.ones(40))
    for actual, expected in zip(
        run(compiled(Column(), inputs), *inputs), Column()(*inputs), strict=True
    ):
        assert same(actual, expected)


def test_compiling_imports_no_runtime():
    code = (
        "import sys\n"
        "from pipeline.backends import BACKENDS\n"
        "assert 'torch' not in sys.modules\n"
        "import pipeline.backends.add_sub.compiler, pipeline.backends.add_sub.partitioner\n"
        "assert 'pipeline.backends.add_sub.runtime' not in sys.modules\n"
        "assert 'executorch.extension.pybindings._portable_lib' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


# The partitioner


class Stateful(torch.nn.Module):
    """State that is read twice before it changes, a weight, and copies that lead nowhere."""

    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(3))
        self.register_buffer("step", torch.tensor([1.0, 2.0, 3.0]))

    def forward(self, x):
        self.count.copy_((self.count + self.step) + x)
        return x.mul(2) + self.step, x.double()


def tagged(module, arguments, **options):
    program = edge_program(module, arguments)
    result = AddSubPartitioner("AddSubBackend", **options).partition(program)
    nodes = {n.name: n.meta.get("delegation_tag") for n in program.graph.nodes}
    return program, result.partition_tags, nodes


def test_state_stays_outside_and_weights_go_in():
    program, tags, nodes = tagged(Stateful(), (torch.ones(3),))
    inputs = {spec.target: nodes[spec.arg.name] for spec in program.graph_signature.input_specs}
    assert inputs["count"] is None and inputs["step"] in tags


def test_copies_alone_and_other_operators_are_left_out():
    program, tags, nodes = tagged(Stateful(), (torch.ones(3),))
    chosen = {nodes[n.name]: str(n.target) for n in program.graph.nodes if "add" in n.name}
    assert set(chosen) == set(tags)
    assert all(nodes[n.name] is None for n in program.graph.nodes if "mul" in n.name)
    casts = [n for n in program.graph.nodes if n.meta["val"] is not None and "to_dim" in n.name]
    assert any(nodes[n.name] is None for n in casts)


def test_whole_takes_everything_so_that_the_compiler_can_refuse_it():
    program, _, nodes = tagged(Unsupported(), (torch.ones(2), torch.ones(2)), whole=True)
    calls = [n.name for n in program.graph.nodes if n.op == "call_function"]
    assert len({nodes[name] for name in calls}) == 1 and None not in {nodes[n] for n in calls}


class Branching(torch.nn.Module):
    def forward(self, x, y):
        return torch.cond(x.sum() > 0, lambda x, y: x + y, lambda x, y: x - y, (x, y))


def test_branches_are_taken_and_refused_where_all_must_be():
    program = edge_program(Branching(), (torch.ones(2), torch.ones(2)))
    tags = AddSubPartitioner("AddSubBackend").partition(program).partition_tags
    assert len(tags) == 2
    with pytest.raises(PipelineError, match=r"takes no control flow: .*in Branching\.forward"):
        AddSubPartitioner("AddSubBackend", whole=True).partition(program)


# The runtime

# Sizes that broadcast with each other, and dtypes that eager mode promotes.
SIZES = [(), (1,), (4,), (3, 1), (3, 4), (2, 1, 4), (2, 3, 4), (0, 3, 4), (2, 0, 1, 1)]
BROADCAST = SIZES[:7]
DTYPES = [getattr(torch, name) for name in text.DTYPES]


def values(sizes, dtype, seed):
    generator = torch.Generator().manual_seed(seed)
    if dtype.is_floating_point:
        plain = torch.randn(sizes, generator=generator) * 100
        return plain.to(dtype)
    if dtype == torch.bool:
        return torch.randint(0, 2, sizes, generator=generator).bool()
    return torch.randint(0, 100, sizes, generator=generator).to(dtype)


class Expression(torch.nn.Module):
    """Computes steps, each (operator, left, right, alpha) on the values so far; `right` may be a
    number of Python's."""

    def __init__(self, constants, steps):
        super().__init__()
        self.steps = steps
        self.count = len(constants)
        for number, constant in enumerate(constants):
            self.register_buffer(f"constant{number}", constant)

    def forward(self, *inputs):
        known = [*inputs, *(getattr(self, f"constant{n}") for n in range(self.count))]
        made = []
        for operator, left, right, alpha in self.steps:
            other = right if isinstance(right, float) else known[right]
            made.append(getattr(torch, operator)(known[left], other, alpha=alpha))
            known.append(made[-1])
        return tuple(made)


@st.composite
def expressions(draw):
    """An expression and its inputs."""
    tensors = st.builds(
        values, st.sampled_from(BROADCAST), st.sampled_from(DTYPES), st.integers(0, 9)
    )
    inputs = draw(st.lists(tensors, min_size=1, max_size=3))
    constants = draw(st.lists(tensors, max_size=2))
    dtypes = [each.dtype for each in (*inputs, *constants)]
    steps = []
    for _ in range(draw(st.integers(1, 4))):
        left, right = (draw(st.integers(0, len(dtypes) - 1)) for _ in range(2))
        kind = torch.promote_types(dtypes[left], dtypes[right])
        if kind == torch.bool or torch.bool in (dtypes[left], dtypes[right]):
            step = ("add", left, right, 1)  # eager mode has no difference of bools
        elif dtypes[left] == torch.float32 and draw(st.booleans()):
            # Edge conversion makes a float32 tensor of a number, which in float64 has lost digits,
            # and in float16 may give another dtype than eager mode does.
            step = (
                draw(st.sampled_from(["add", "sub"])),
                left,
                draw(st.sampled_from([2.5, -1.0])),
                1,
            )
            kind = dtypes[left]
        else:
            alphas = [1, -1, 2] + ([0.5, -2.25] if kind.is_floating_point else [])
            operator = draw(st.sampled_from(["add", "sub"]))
            step = (operator, left, right, draw(st.sampled_from(alphas)))
        steps.append(step)
        dtypes.append(kind)
    return Expression(constants, steps), tuple(inputs)


@settings(max_examples=30, phases=[Phase.explicit, Phase.generate])
@given(expressions())
def test_it_computes_what_eager_mode_does(expression):
    module, inputs = expression
    for actual, expected in zip(
        run(compiled(module, inputs), *inputs), module(*inputs), strict=True
    ):
        assert same(actual, expected)


@settings(max_examples=20, phases=[Phase.explicit, Phase.generate])
@given(
    st.sampled_from(BROADCAST), st.sampled_from(BROADCAST), st.sampled_from(DTYPES),
    st.sampled_from(DTYPES), st.sampled_from([1, -1, 3]),
)  # fmt: skip
def test_every_pair_of_sizes_and_dtypes_is_eager_modes(left, right, first, second, alpha):
    if torch.bool in (first, second):
        alpha = 1
    module = Expression([], [("add", 0, 1, alpha)])
    inputs = (values(left, first, 1), values(right, second, 2))
    (actual,), (expected,) = run(compiled(module, inputs), *inputs), module(*inputs)
    assert same(actual, expected)


@pytest.mark.parametrize("sizes", [(0, 3, 4), (2, 0, 1, 1)])
def test_empty_tensors(sizes):
    module = Expression([torch.ones(1, 1)], [("sub", 0, 1, 2)])
    inputs = (torch.ones(sizes),)
    (actual,), (expected,) = run(compiled(module, inputs), *inputs), module(*inputs)
    assert same(actual, expected)


class Rows(torch.nn.Module):
    def forward(self, x, y, z):
        total = x + y
        return total - z


@pytest.fixture(scope="module")
def growing():
    """`x + y - z`, whose first size is known at run time only."""
    arguments = tuple(torch.ones(3, 2) for _ in range(3))
    size = Dim("rows", min=1, max=9)
    return compiled(Rows(), arguments, tuple({0: size} for _ in range(3)))


def test_sizes_that_come_at_run_time(growing):
    for size in (1, 5):
        x, y, z = (values((size, 2), torch.float32, seed) for seed in range(3))
        (actual,) = run(growing, x, y, z)
        assert same(actual, x + y - z)


def test_an_instruction_that_fails_tells_its_debug_handle(growing):
    program = loaded(growing)
    (subtraction,) = (each for each in program.instructions if each.operation == "sub")
    with pytest.raises(DelegateError, match="sub: The size of tensor a") as caught:
        AddSubRuntime().execute(program, (torch.ones(3, 2), torch.ones(3, 2), torch.ones(4, 2)))
    assert caught.value.debug_handle == subtraction.handle == 2
    done = AddSubRuntime().timings(program)
    assert [(each.name, each.debug_handle) for each in done] == [("add", 1)]


def test_a_result_that_was_not_declared_is_an_error():
    lines = [
        {"operation": "input", "value": "v0", "type": "float32[?]"},
        {"operation": "input", "value": "v1", "type": "float32[?]"},
        computed("add", "v2", "float32[3]", "v0", "v1", handle=7),
        {"operation": "output", "operands": ["v2"]},
    ]
    program = AddSubRuntime().init(sealed(lines), (), {})
    with pytest.raises(DelegateError) as caught:
        AddSubRuntime().execute(program, (torch.ones(4), torch.ones(4)))
    assert str(caught.value) == "add: v2 must be float32[3], is float32[4]"
    assert caught.value.debug_handle == 7


@pytest.mark.parametrize(
    ("inputs", "what"),
    [
        ([torch.ones(3, 2)], "takes 3 inputs, 1 given"),
        ([torch.ones(3, 2), 2, torch.ones(3, 2)], "input: v1 must be float32[?,2], is int"),
        ([torch.ones(3, 2), torch.ones(3, 2), torch.ones(3, 3)],
         "input: v2 must be float32[?,2], is float32[3,3]"),
        ([torch.ones(3, 2), torch.ones(3, 2).long(), torch.ones(3, 2)],
         "input: v1 must be float32[?,2], is int64[3,2]"),
        ([torch.ones(2), torch.ones(3, 2), torch.ones(3, 2)],
         "input: v0 must be float32[?,2], is float32[2]"),
    ],
)  # fmt: skip
def test_inputs_are_checked(growing, inputs, what):
    with pytest.raises(DelegateError) as caught:
        run(growing, *inputs)
    assert str(caught.value) == what
    assert caught.value.debug_handle is None


def test_every_instruction_is_timed_with_its_debug_handle(golden):
    program = loaded(golden)
    assert AddSubRuntime().timings(program) == ()
    inputs = (torch.randn(2, 3), torch.randn(3).bfloat16(), torch.arange(3))
    for _ in range(2):  # those of the last call
        AddSubRuntime().execute(program, inputs)
        timings = AddSubRuntime().timings(program)
        assert [(each.name, each.debug_handle) for each in timings] == [
            ("sub", 1), ("add", 2), ("cast", 3), ("cast", 4), ("add", 4), ("sub", 5)
        ]  # fmt: skip
        assert all(each.seconds >= 0 for each in timings)


def test_outputs_share_no_memory_with_inputs_and_constants():
    lines = [
        {"operation": "input", "value": "v0", "type": "float32[2]"},
        {"operation": "constant", "value": "v1", "type": "float32[2]", "data": "key"},
        computed("cast", "v2", "float32[2]", "v0", handle=1),
        {"operation": "output", "operands": ["v0", "v1", "v2"]},
    ]
    data = {"key": torch.tensor([1.0, 2.0]).numpy().tobytes()}
    program, x = AddSubRuntime().init(sealed(lines), (), data), torch.ones(2)
    for output in AddSubRuntime().execute(program, (x,)):
        output.fill_(9)
    assert torch.equal(x, torch.ones(2))
    assert AddSubRuntime().execute(program, (x,))[1].tolist() == [1.0, 2.0]


def test_names_change_nothing():
    arguments = (torch.randn(2, 3), torch.randn(3).bfloat16(), torch.arange(3))
    program = edge_program(Golden(), arguments)
    expected = preprocess(program, []).processed_bytes
    for number, node in enumerate(program.graph.nodes):
        if node.op == "call_function":
            node.name = f"renamed_{number}"
    assert preprocess(program, []).processed_bytes == expected


class Filtered(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Rows()

    def forward(self, x, y, z):
        return self.inner(x * y, y, z).sin()


@pytest.mark.parametrize("module", ["inner", ""])
def test_whole_is_of_the_modules_that_are_named(module):
    """The multiplication outside is no matter; where no module is named, it is."""
    program = export(Filtered(), tuple(torch.ones(3, 2) for _ in range(3)))
    options = BACKENDS["add_sub"].options(whole=True)
    modules = (module,) if module else None
    spec = PartitionerSpec(name="add_sub", options=options, modules=modules)
    partitioners = {"forward": make_filtered_partitioners([spec])}
    if not module:
        with pytest.raises(PipelineError, match=r"no instruction for aten\.mul\.Tensor: .*sin"):
            lower({"forward": program}, partitioners)
        return
    lowered = lower({"forward": program}, partitioners).exported_program("forward")
    counts = describe_delegation(lowered)
    assert counts["partitions"] == {"AddSubBackend": 1}
    assert (counts["delegated_nodes"], counts["nodes"]) == (2, 4)


# Packages

MODEL = '''
"""Sums, with weights that two methods share and a branch."""

import torch
from torch import nn
from torch.export import Dim, export


class Features(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("large", torch.arange(24.0).reshape(6, 4))
        self.register_buffer("small", torch.tensor([0.5, -1.0, 2.0, 0.1]))

    def forward(self, x, y):
        total = torch.add(x, y, alpha=3)
        return total - self.large + self.small


class Classify(nn.Module):
    def __init__(self, trunk):
        super().__init__()
        self.trunk = trunk
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x, y):
        features = self.trunk(x, y) - x
        self.count.add_(1)
        return features.double() + self.count


def inputs(seed, rows=6):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(6, 4, generator=generator), torch.randn(1, 4, generator=generator)


def export_methods():
    trunk = Features()
    return {
        "features": export(trunk, inputs(0)),
        "classify": export(Classify(trunk), inputs(0)),
    }


def example_inputs(method):
    return [inputs(1)]
'''
SUMS = both(partitioners=[{"add_sub": {"whole": False}}])


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    bench = bench_for(tmp_path_factory.mktemp("add_sub") / "workspace", {"sums": SUMS})
    (bench.root / "models" / "small.py").write_text(MODEL)
    assert bench.doit() == 0, bench.output
    return bench


@pytest.mark.slow
def test_all_is_delegated_and_runs(bench):
    check_delegated(bench, "sums", "AddSubBackend", 0.8)
    check_ran(bench, "sums")
    features = manifest_of(bench, "sums")["methods"]["features"]["delegation"]
    assert features["nodes"] == features["delegated_nodes"] == 3
    assert "AddSubBackend: 3 in 1 partition" in bench.bytes_of("sums", "report.md").decode()


@pytest.mark.slow
def test_bytes_are_those_of_the_joint_call_and_of_another_build(bench):
    check_same_bytes(bench, ["sums"])


@pytest.mark.slow
def test_a_fresh_checkout_compiles_nothing(bench, tmp_path):
    check_fresh_checkout_hits(bench, tmp_path / "other", "sums")


@pytest.mark.slow
def test_constants_of_two_methods_are_stored_once(bench):
    pte = bench.bytes_of("sums", "small.pte")
    assert pte.count(torch.arange(24.0).numpy().tobytes()) == 1
    assert pte.count(b'"data":"add_sub/') == 5
    assert str(bench.root).encode() not in pte


def broken(bench, folder):
    """The package, with a subtraction that declares another result than it gives."""
    pte = bench.bytes_of("sums", "small.pte")
    start = pte.index(b"add_sub 2 ")
    end = pte.index(b"}", pte.index(b'"output"', start)) + 1
    _, *lines = pte[start:end].splitlines()
    assert text.seal(b"\n".join(lines)) == pte[start:end]
    number = next(n for n, line in enumerate(lines) if b'"sub"' in line)
    lines[number] = lines[number].replace(b"[6,4]", b"[6,5]", 1)
    path = folder / "small.pte"
    path.write_bytes(pte[:start] + text.seal(b"\n".join(lines)) + pte[end:])
    return path


@pytest.mark.slow
@pytest.mark.parametrize("shift", ["", "# one\n# two\n"])
def test_a_delegate_that_fails_tells_the_line_of_the_source_as_it_is_now(bench, tmp_path, shift):
    """The same program on other lines leads there through the manifest of the package."""
    plan, path = plan_of(bench), tmp_path / "models" / "small.py"
    path.parent.mkdir()
    path.write_text(shift + MODEL)
    exporter = {}
    exec(compile(path.read_text(), str(path), "exec"), exporter)
    programs = exporter["export_methods"]()
    lines = lines_of_handles(manifest_of(bench, "sums")["methods"], programs, tmp_path)
    settings = plan.config("sums").validation
    result = validate_package(broken(bench, tmp_path), [], programs, {}, settings, {}, None, lines)
    (failures,) = (method.failures for method in result.methods if method.failures)
    code = "return total - self.large + self.small"
    number = 1 + next(n for n, x in enumerate(path.read_text().splitlines()) if code in x)
    told = f"must be float32[6,5], is float32[6,4]; of {code}  # models/small.py:{number}, in Feat"
    assert failures and all(told in failure.what for failure in failures)


@pytest.mark.slow
def test_no_path_of_a_machine_is_kept(bench):
    manifest = bench.bytes_of("sums", "manifest.json").decode()
    assert str(bench.root) not in manifest and "small.py" not in manifest
    places = manifest_of(bench, "sums")["methods"]["features"]["debug_handles"]
    assert [handle for handle, _ in places] == sorted(handle for handle, _ in places) and places
