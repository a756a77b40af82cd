"""The add/sub backend: its text format, its compiler, its runtime, and packages lowered to it."""

import inspect
import json
import math

import pytest
import torch
from executorch.exir import to_edge
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch.export import Dim, export

from pipeline.backends.delegate_runtime import DelegateError
from pipeline.features.add_sub.compiler import preprocess
from pipeline.features.add_sub.partitioner import AddSubPartitioner
from pipeline.features.add_sub.runtime import AddSubRuntime
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
    """Return the named data of a result in the form that the interpreter passes on."""
    store = result.data_store_output
    pairs = store.pte_data.items() if store is not None else ()
    return {key: bytes(store.buffers[entry.buffer_index]) for key, entry in pairs}


def loaded(result):
    return AddSubRuntime().init(result.processed_bytes, (), data_of(result))


def run(result, *inputs):
    return AddSubRuntime().execute(loaded(result), inputs)


def same(actual, expected):
    """Return whether two tensors are equal bit for bit, except that all NaNs are equal."""
    equal = torch.allclose(actual, expected, rtol=0, atol=0, equal_nan=True)
    signs = not expected.is_floating_point() or torch.equal(
        torch.signbit(actual.nan_to_num()), torch.signbit(expected.nan_to_num())
    )
    return actual.dtype == expected.dtype and actual.shape == expected.shape and equal and signs


def computed(operation, kind, *operands, **rest):
    return {"operation": operation, "type": kind, "operands": operands, **rest}


class Golden(torch.nn.Module):
    """Everything that the text format can express."""

    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.tensor([0.5, -2.0, math.nan]))
        self.register_buffer("offset", torch.tensor([[1], [-2]]))

    def forward(self, x, y, i):
        shifted = torch.sub(x, self.scale, alpha=2.5)
        counted = torch.add(i, self.offset, alpha=-3)
        return shifted, counted, x.double() + 1, y - y


GOLDEN = [
    {"operation": "constant", "type": "float32[3]", "data": "scale"},
    {"operation": "constant", "type": "int64[2,1]", "data": "offset"},
    {"operation": "constant", "type": "int64[]", "data": "one"},
    {"operation": "input", "type": "float32[?,3]"},
    {"operation": "input", "type": "bfloat16[3]"},
    {"operation": "input", "type": "int64[3]"},
    computed("sub", "float32[?,3]", 4, 1, alpha=2.5, handle=1),
    computed("add", "int64[2,3]", 6, 2, alpha=-3, handle=2),
    computed("cast", "float64[?,3]", 4, handle=3),
    computed("cast", "float64[]", 3, handle=4),
    computed("add", "float64[?,3]", 9, 10, handle=4),
    computed("sub", "bfloat16[3]", 5, 5, handle=5),
    {"operation": "output", "operands": [7, 8, 11, 12]},
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


def payload_of(lines):
    return "\n".join(json.dumps(line, separators=(",", ":")) for line in lines).encode()


# The text


def test_a_partition_becomes_this_text(golden):
    assert golden.processed_bytes == payload_of(GOLDEN)
    assert data_of(golden) == DATA
    handles = {n: line["handle"] for n, line in enumerate(GOLDEN, 1) if "handle" in line}
    assert golden.debug_handle_map == {n: (handle,) for n, handle in handles.items()}


@pytest.mark.parametrize(
    "change",
    [
        {"operation": "mul"},
        {"operation": "output"},
        {"type": "float32"},
        {"operands": "4"},
        {"operands": [4, 7]},
        {"operands": [0]},
        {"handle": "1"},
        {"alpha": "__import__('os')"},
        {"alpha": [1]},
        {"more": 1},
    ],
)
def test_a_damaged_line_is_named(change):
    lines = [*GOLDEN[:6], GOLDEN[6] | change, *GOLDEN[7:]]
    with pytest.raises(DelegateError, match="line 7 is not a valid instruction"):
        AddSubRuntime().init(payload_of(lines), (), DATA)


@pytest.mark.parametrize("end", range(1, len(GOLDEN)))
def test_a_payload_that_was_cut_is_refused(end):
    with pytest.raises(DelegateError, match=f"line {end} is not a valid instruction"):
        AddSubRuntime().init(payload_of(GOLDEN[:end]), (), DATA)


INPUTS = (torch.randn(2, 3), torch.randn(3).bfloat16(), torch.arange(3))


def survive(payload, data=DATA):
    """Load and call a payload; the only error allowed is a DelegateError that names a line."""
    try:
        AddSubRuntime().execute(AddSubRuntime().init(payload, (), data), INPUTS)
    except DelegateError as error:
        assert error.reason.startswith("line "), error


@settings(max_examples=100)
@given(data=st.data())
def test_a_changed_payload_never_crashes(golden, data):
    payload = golden.processed_bytes
    place = data.draw(st.integers(0, len(payload) - 1))
    new = data.draw(st.binary(max_size=3))
    survive(payload[:place] + new + payload[place + len(new) :])


TYPES = [name for name in dir(torch) if isinstance(getattr(torch, name), torch.dtype)]


@pytest.mark.parametrize("sizes", ["0", "1"])
@pytest.mark.parametrize("name", TYPES)
def test_constants_of_any_type_are_returned_or_refused(name, sizes):
    constant = {"operation": "constant", "type": f"{name}[{sizes}]", "data": "bytes"}
    data = {"bytes": bytes(int(sizes) * getattr(torch, name).itemsize)}
    survive(payload_of([constant, {"operation": "output", "operands": [1]}]), data)


@settings(max_examples=100)
@given(st.data())
def test_other_fields_never_crash(data):
    lines = [dict(line) for line in GOLDEN]
    line = lines[data.draw(st.integers(0, len(lines) - 1))]
    name = data.draw(st.sampled_from(TYPES) | st.sampled_from(["save", "Tensor", "no_grad"]))
    sizes = data.draw(st.sampled_from(["", "3", "?", "2,1", "9" * 30, ",,", "0"]))
    known = st.lists(st.integers(-1, 14), max_size=3)
    line |= data.draw(
        st.fixed_dictionaries(
            {},
            optional={
                "operation": st.sampled_from(["input", "constant", "add", "sub", "cast", "output"]),
                "type": st.just(f"{name}[{sizes}]"),
                "operands": known,
                "alpha": st.floats() | st.integers(-(2**70), 2**70),
            },
        )
    )
    survive(payload_of(lines))


@settings(max_examples=50)
@given(st.binary(max_size=80))
def test_any_bytes_are_refused(data):
    with pytest.raises(DelegateError, match="line "):
        AddSubRuntime().init(data, (), {})


def test_named_data_must_be_there_and_fit(golden):
    key, *_ = DATA
    for data in (b"", bytes(11), bytes(16)):
        with pytest.raises(DelegateError, match="line 1: constant: "):
            AddSubRuntime().init(golden.processed_bytes, (), {**DATA, key: data})


# The compiler


class Unsupported(torch.nn.Module):
    def forward(self, x, y):
        total = x + y
        scaled = total * y
        return torch.sin(scaled) - x


def line_of(function, code):
    lines, start = inspect.getsourcelines(function)
    return start + next(n for n, line in enumerate(lines) if code in line)


def test_an_operator_without_an_instruction_is_refused_with_its_line():
    with pytest.raises(PipelineError) as caught:
        compiled(Unsupported(), (torch.ones(2), torch.ones(2)))
    line = f"test_add_sub.py:{line_of(Unsupported.forward, 'total * y')}, in Unsupported.forward"
    told = str(caught.value)
    assert told.startswith("add_sub has no instruction for aten.mul.Tensor: scaled = total * y  # ")
    assert told.endswith(line)


def test_no_bits_of_a_constant_are_lost():
    payload = b"\x01\x00\xc0\x7f\x00\x00\xc0\x7f"  # an unusual NaN, and the usual one

    class Nan(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("odd", torch.frombuffer(bytearray(payload), dtype=torch.float32))

        def forward(self, x):
            return x + self.odd

    result = compiled(Nan(), (torch.ones(2),))
    assert loaded(result).constants[1].view(torch.uint8).numpy().tobytes() == payload


def test_constants_are_written_by_their_values_not_by_their_strides():
    class Column(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("few", torch.arange(12.0).reshape(3, 4)[:, 1])
            self.register_buffer("many", torch.arange(80.0).reshape(40, 2)[:, 1])
            self.register_buffer("none", torch.zeros(0, 3))

        def forward(self, x, y):
            return x + self.few, y - self.many, x - self.none

    inputs = (torch.ones(3), torch.ones(40))
    for actual, expected in zip(
        run(compiled(Column(), inputs), *inputs), Column()(*inputs), strict=True
    ):
        assert same(actual, expected)


# The partitioner


class Stateful(torch.nn.Module):
    """State that is read twice before it changes, and a weight."""

    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(3))
        self.register_buffer("step", torch.tensor([1.0, 2.0, 3.0]))

    def forward(self, x):
        self.count.copy_((self.count + self.step) + x)
        return x.mul(2) + self.step


def test_state_stays_outside_and_weights_go_in():
    program = edge_program(Stateful(), (torch.ones(3),))
    tags = AddSubPartitioner().partition(program).partition_tags
    nodes = {n.name: n.meta.get("delegation_tag") for n in program.graph.nodes}
    inputs = {spec.target: nodes[spec.arg.name] for spec in program.graph_signature.input_specs}
    assert inputs["count"] is None and inputs["step"] in tags
    calls = [node for node in program.graph.nodes if node.op == "call_function"]
    taken = {node.name for node in calls if nodes[node.name] is not None}
    assert taken == {node.name for node in calls if "add" in node.name}


class Numbers(torch.nn.Module):
    def forward(self, x):
        return torch.add(x, x, alpha=x.sum().item()), torch.add(x > 0, x > 1, alpha=True)


def test_an_alpha_that_the_text_cannot_say_is_left_out():
    program = edge_program(Numbers(), (torch.ones(3),))
    assert AddSubPartitioner().partition(program).partition_tags == {}


class Branching(torch.nn.Module):
    def forward(self, x, y):
        return torch.cond(x.sum() > 0, lambda x, y: x + y, lambda x, y: x - y, (x, y))


def test_branches_are_taken():
    program = edge_program(Branching(), (torch.ones(2), torch.ones(2)))
    assert len(AddSubPartitioner().partition(program).partition_tags) == 2


# The runtime

# Sizes that broadcast with one another, and dtypes that eager mode promotes.
SIZES = [(), (1,), (4,), (3, 1), (3, 4), (2, 1, 4), (2, 3, 4), (0, 3, 4), (2, 0, 1, 1)]
BROADCAST = SIZES[:7]
DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16,
    torch.bfloat16, torch.float32, torch.float64,
]  # fmt: skip


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
    Python number."""

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
    """Draw an expression and its inputs."""
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
            step = ("add", left, right, 1)  # eager mode can't subtract bools
        elif dtypes[left] == torch.float32 and draw(st.booleans()):
            # Edge conversion makes a number a float32 tensor. With float64 that loses digits, and
            # with float16 it may give another dtype than eager mode.
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


@pytest.mark.slow
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
    """Export `x + y - z`, whose first size is known only at run time."""
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
    with pytest.raises(DelegateError, match="line 5: sub: The size of tensor a") as caught:
        AddSubRuntime().execute(program, (torch.ones(3, 2), torch.ones(3, 2), torch.ones(4, 2)))
    assert caught.value.debug_handle == subtraction.handle == 2
    done = AddSubRuntime().timings(program)
    assert [(each.name, each.debug_handle) for each in done] == [("add", 1)]


def test_a_result_that_was_not_declared_is_an_error():
    lines = [
        {"operation": "input", "type": "float32[?]"},
        {"operation": "input", "type": "float32[?]"},
        computed("add", "float32[3]", 1, 2, handle=7),
        {"operation": "output", "operands": [3]},
    ]
    program = AddSubRuntime().init(payload_of(lines), (), {})
    with pytest.raises(DelegateError) as caught:
        AddSubRuntime().execute(program, (torch.ones(4), torch.ones(4)))
    assert str(caught.value) == "line 3: add: must be float32[3], is float32[4]"
    assert caught.value.debug_handle == 7


@pytest.mark.parametrize(
    ("inputs", "what"),
    [
        ([torch.ones(3, 2)], "line 2: input: must be float32[?,2], is NoneType"),
        ([torch.ones(3, 2), 2, torch.ones(3, 2)],
         "line 2: input: must be float32[?,2], is int"),
        ([torch.ones(3, 2), torch.ones(3, 2), torch.ones(3, 3)],
         "line 3: input: must be float32[?,2], is float32[3,3]"),
        ([torch.ones(3, 2), torch.ones(3, 2).long(), torch.ones(3, 2)],
         "line 2: input: must be float32[?,2], is int64[3,2]"),
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
    for _ in range(2):  # values of the last call
        AddSubRuntime().execute(program, INPUTS)
        timings = AddSubRuntime().timings(program)
        assert [(each.name, each.debug_handle) for each in timings] == [
            ("sub", 1), ("add", 2), ("cast", 3), ("cast", 4), ("add", 4), ("sub", 5)
        ]  # fmt: skip
        assert all(each.seconds >= 0 for each in timings)


def test_outputs_share_no_memory_with_inputs_and_constants():
    lines = [
        {"operation": "input", "type": "float32[2]"},
        {"operation": "constant", "type": "float32[2]", "data": "key"},
        computed("cast", "float32[2]", 1, handle=1),
        {"operation": "output", "operands": [1, 2, 3]},
    ]
    data = {"key": torch.tensor([1.0, 2.0]).numpy().tobytes()}
    program, x = AddSubRuntime().init(payload_of(lines), (), data), torch.ones(2)
    for output in AddSubRuntime().execute(program, (x,)):
        output.fill_(9)
    assert torch.equal(x, torch.ones(2))
    assert AddSubRuntime().execute(program, (x,))[1].tolist() == [1.0, 2.0]


def test_names_change_nothing():
    program = edge_program(Golden(), INPUTS)
    expected = preprocess(program, []).processed_bytes
    for number, node in enumerate(program.graph.nodes):
        if node.op == "call_function":
            node.name = f"renamed_{number}"
    assert preprocess(program, []).processed_bytes == expected


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
SUMS = both(partitioners=["add_sub"])


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
    pte = bench.bytes_of("sums", "sums.pte")
    assert pte.count(torch.arange(24.0).numpy().tobytes()) == 1
    assert pte.count(b'"data":"add_sub/') == 5
    assert str(bench.root).encode() not in pte


def broken(bench, folder):
    """Return the package with a subtraction that declares another result than it returns."""
    pte = bench.bytes_of("sums", "sums.pte")
    start = pte.index(b"[6,4]", pte.index(b'"sub"'))
    path = folder / "sums.pte"
    path.write_bytes(pte[:start] + b"[6,5]" + pte[start + 5 :])
    return path


@pytest.mark.slow
@pytest.mark.parametrize("shift", ["", "# one\n# two\n"])
def test_a_delegate_that_fails_tells_the_line_of_the_source_as_it_is_now(bench, tmp_path, shift):
    """With the same program on other lines, the package's manifest leads to the current line."""
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
    assert failures and all(told in failure["what"] for failure in failures)


@pytest.mark.slow
def test_no_path_of_a_machine_is_kept(bench):
    manifest = bench.bytes_of("sums", "manifest.json").decode()
    assert str(bench.root) not in manifest and "small.py" not in manifest
    places = manifest_of(bench, "sums")["methods"]["features"]["debug_handles"]
    assert [handle for handle, _ in places] == sorted(handle for handle, _ in places) and places
