import json
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.export import Dim, export

from pipeline.program.inputs import InputSet, as_input_sets, load_inputs, save_inputs
from pipeline.program.random_inputs import LONGEST_DIMENSION, MOST_ELEMENTS, generate_inputs
from pipeline.program.signature import as_exported, check_inputs, flatten
from pipeline.store.errors import PipelineError


class Embed(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(7, 4)

    def forward(self, tokens, mask, *, scale, offset: int):
        return self.table(tokens) * mask.unsqueeze(-1) * scale + offset


class Nested(nn.Module):
    def forward(self, states, options):
        return states[0]["key"] + states[1] * options["gain"]


class Sum(nn.Module):
    def forward(self, *tensors):
        return sum(tensor.sum() for tensor in tensors)


class Rows(nn.Module):
    def forward(self, x):
        return x.view(-1, 4).sum(1)


def summed(*tensors, shapes=None):
    return export(Sum(), tensors, dynamic_shapes={"tensors": shapes} if shapes else None)


@pytest.fixture(scope="module")
def embed():
    length = Dim("length", min=2, max=9)
    args = (torch.tensor([[1, 5, 2]]), torch.ones(1, 3, dtype=torch.bool))
    kwargs = {"scale": torch.tensor(2.0), "offset": 3}
    shapes = {"tokens": {1: length}, "mask": {1: length}, "scale": None, "offset": None}
    return export(Embed(), args, kwargs, dynamic_shapes=shapes)


@pytest.fixture(scope="module")
def nested():
    states = ({"key": torch.ones(2), "value": torch.ones(2)}, torch.ones(2))
    return export(Nested(), (states, {"gain": torch.ones(2)}))


def embed_inputs(**changes):
    values = {
        "tokens": torch.tensor([[1, 6, 2, 0]]),
        "mask": torch.ones(1, 4, dtype=torch.bool),
        "scale": torch.tensor(0.5),
        "offset": 3,
    } | changes
    args = (values.pop("tokens"), values.pop("mask"))
    return InputSet(args, values, "example 0")


def mistakes(program, inputs):
    with pytest.raises(PipelineError) as caught:
        check_inputs(program, inputs, "embed")
    return str(caught.value).splitlines()


X, Y = torch.ones(2), torch.zeros(3)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ((X, 1), [((X, 1), {})]),
        ((), [((), {})]),
        ([(X,), (Y,)], [((X,), {}), ((Y,), {})]),
        ([((X,), {"n": 2}), (Y,)], [((X,), {"n": 2}), ((Y,), {})]),
        (((X,), {"n": 2}), [((X,), {"n": 2})]),
        ([((X,), {})], [((X,), {})]),
        (([X, {"a": Y}], None, "s", True, 1.5), [(([X, {"a": Y}], None, "s", True, 1.5), {})]),
        ((X.shape,), [((tuple(X.shape),), {})]),
    ],
)
def test_what_an_exporter_may_return(value, expected):
    sets = as_input_sets(value, "example")
    assert [(s.args, s.kwargs) for s in sets] == expected
    assert [s.origin for s in sets] == [f"example {n}" for n in range(len(expected))]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (X, "example 0: a tensor, must be a tuple of arguments or an (args, kwargs) pair"),
        ({"x": X}, "example 0: a dict of 1, must be a tuple"),
        (None, "example 0: None, must be a tuple"),
        ([(X,), Y], "example 1: a tensor, must be a tuple"),
        ([], "example: an empty list"),
        ((X.numpy(),), "example 0: args[0] is of type ndarray"),
        (([{"a": {X}}],), "example 0: args[0][0]['a'] is of type set"),
        (({b"k": X},), "example 0: args[0] has the key b'k', must be a str, a number, None, or a"),
        ([((X,), {1: X})], "example 0: kwargs has the key 1, must be a str"),
        ([((X,), {"n": X.numpy()})], "example 0: n is of type ndarray"),
    ],
)
def test_anything_else_is_refused_with_its_place(value, message):
    with pytest.raises(PipelineError) as caught:
        as_input_sets(value, "example")
    assert message in str(caught.value)


def test_all_that_is_wrong_is_said_together():
    with pytest.raises(PipelineError) as caught:
        as_input_sets([X, ({1},), (Y,), Y], "example")
    assert [line.split(":")[0] for line in str(caught.value).splitlines()] == [
        "example 0",
        "example 1",
        "example 3",
    ]


def test_inputs_that_fit(embed, nested):
    check_inputs(embed, embed_inputs())
    states = ({"value": torch.zeros(2), "key": torch.ones(2)}, torch.ones(2))
    check_inputs(nested, InputSet((states, {"gain": torch.ones(2)})))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokens": torch.ones(1, 4)}, "argument 'tokens': dtype float32, must be int64"),
        ({"tokens": torch.ones(4).long()}, "argument 'tokens': rank 1, must be 2"),
        ({"tokens": 3}, "argument 'tokens': an int, must be a tensor"),
        ({"tokens": None}, "argument 'tokens': None, must be a tensor"),
        ({"tokens": [X]}, "argument 'tokens': a list of 1, must be a tensor"),
        (
            {"tokens": torch.ones(2, 4).long()},
            "argument 'tokens': size 2 at dimension 0, must be 1",
        ),
        ({"scale": torch.ones(1)}, "argument 'scale': rank 1, must be 0"),
        (
            {"offset": 4},
            "argument 'offset': 4, must be 3, the value that the program was exported with",
        ),
        ({"offset": 3.0}, "argument 'offset': 3.0, must be 3, the value"),
        ({"offset": X}, "argument 'offset': a tensor, must be 3, the value"),
        ({"bias": X}, "argument 'bias': unknown keyword; known: scale, offset"),
    ],
)
def test_a_wrong_argument_is_named(embed, changes, message):
    (line,) = mistakes(embed, embed_inputs(**changes))
    assert line.startswith(f"embed: example 0: {message}")


def test_sizes_out_of_range(embed):
    for length in (1, 10):
        tokens, mask = torch.zeros(1, length).long(), torch.ones(1, length, dtype=torch.bool)
        lines = mistakes(embed, embed_inputs(tokens=tokens, mask=mask))
        limit = f"size {length} at dimension 1, must be at least 2 and at most 9"
        assert lines == [f"embed: example 0: argument '{n}': {limit}" for n in ("tokens", "mask")]


def test_one_symbol_has_one_size_everywhere(embed):
    (line,) = mistakes(embed, embed_inputs(mask=torch.ones(1, 5, dtype=torch.bool)))
    assert "argument 'mask': size 5 at dimension 1, must be 4 (" in line
    assert "= 4)" in line


def test_derived_sizes():
    size = Dim("size", min=2, max=8)
    shapes = ({0: size}, {0: 2 * size}, {0: size + 1})
    program = summed(torch.ones(4), torch.ones(8), torch.ones(5), shapes=shapes)
    check_inputs(program, InputSet((torch.ones(3), torch.ones(6), torch.ones(4))))
    lines = mistakes(program, InputSet((torch.ones(3), torch.ones(5), torch.ones(3))))
    assert [line.split("': ")[1].split(" (")[0] for line in lines] == [
        "size 5 at dimension 0, must be 6",
        "size 3 at dimension 0, must be 4",
    ]


def test_a_size_that_only_a_multiple_constrains():
    program = summed(torch.ones(8), shapes=({0: 4 * Dim("rows", min=2, max=5)},))
    check_inputs(program, InputSet((torch.ones(12),)))
    (line,) = mistakes(program, InputSet((torch.ones(10),)))
    assert "size 10 at dimension 0, must be 4*" in line
    (line,) = mistakes(program, InputSet((torch.ones(24),)))
    assert "size 24 at dimension 0, must be at least" in line


def test_wrong_structures(embed, nested):
    (line,) = mistakes(embed, InputSet((*embed_inputs().args, X), embed_inputs().kwargs))
    assert line == "embed: input: 3 positional arguments, must be 2"
    lines = mistakes(embed, InputSet(embed_inputs().args, {}))
    assert [line.split(": ")[2] for line in lines] == ["argument 'scale'", "argument 'offset'"]
    states = ({"key": torch.ones(2)}, torch.ones(2))
    (line,) = mistakes(nested, InputSet((states, {"gain": torch.ones(2)})))
    assert "a dict of 1, must be a dict of 2 with the keys key, value" in line
    (line,) = mistakes(nested, InputSet(([*states], {"gain": torch.ones(2)})))
    assert "a list of 2, must be a tuple of 2" in line


def test_nested_arguments_are_named_by_their_path(nested):
    states = ({"key": torch.ones(2), "value": torch.ones(3)}, torch.ones(2))
    (line,) = mistakes(nested, InputSet((states, {"gain": torch.ones(2)})))
    assert "argument 'states[0]['value']': size 3 at dimension 0, must be 2" in line


def test_all_mistakes_of_a_set_are_said_together(embed):
    wrong = embed_inputs(tokens=torch.ones(1, 4), mask=torch.ones(4), scale=2.0)
    assert [line.removeprefix("embed: example 0: ") for line in mistakes(embed, wrong)] == [
        "argument 'tokens': dtype float32, must be int64",
        "argument 'mask': dtype float32, must be bool",
        "argument 'mask': rank 1, must be 2",
        "argument 'scale': a float, must be a tensor",
    ]


def test_flat_inputs_follow_the_signature(nested):
    key, value, last, gain = (torch.full((2,), float(n)) for n in range(4))
    inputs = InputSet((({"value": value, "key": key}, last), {"gain": gain}))
    flat = flatten(nested, inputs)
    assert [int(tensor[0]) for tensor in flat] == [0, 1, 2, 3]
    assert flat[0].data_ptr() != key.data_ptr()


@pytest.mark.parametrize("exported", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("given", [torch.contiguous_format, torch.channels_last])
def test_flat_inputs_have_the_layout_of_the_export(exported, given):
    x = torch.arange(48.0).reshape(1, 3, 4, 4)
    program = summed(x.to(memory_format=exported))
    (flat,) = flatten(program, InputSet((x.to(memory_format=given),)))
    assert flat.is_contiguous(memory_format=exported)
    assert torch.equal(flat, x)
    (flat,) = flatten(program, InputSet((x.permute(0, 1, 3, 2),)))
    assert flat.is_contiguous(memory_format=exported)
    assert torch.equal(flat, x.permute(0, 1, 3, 2))


def test_input_sets_can_be_laid_out_as_exported(nested):
    x = torch.arange(48.0).reshape(1, 3, 4, 4)
    program = summed(x.to(memory_format=torch.channels_last))
    given = InputSet((x,), {}, "a file")
    laid_out = as_exported(program, given)
    assert laid_out.args[0].is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(laid_out.args[0], x) and laid_out.origin == "a file"
    assert given.args[0] is x and x.is_contiguous()
    states = ({"key": torch.ones(2), "value": torch.zeros(2)}, torch.ones(2))
    again = as_exported(nested, InputSet((states, {"gain": torch.ones(2)})))
    assert list(again.args[0][0]) == ["key", "value"] and not again.args[0][0]["value"].any()
    assert list(again.args[1]) == ["gain"]


def test_generated_sets_fit_and_span_the_sizes(embed):
    sets = generate_inputs(embed, 6, 0)
    for inputs in sets:
        check_inputs(embed, inputs)
    lengths = [inputs.args[0].shape[1] for inputs in sets]
    assert lengths[:2] == lengths[3:5] == [2, 9]
    assert all(2 < length < 9 for length in (lengths[2], lengths[5]))
    assert sets[1].origin == "generated 1 (seed 0): tokens.shape[1]=9"
    assert {inputs.kwargs["offset"] for inputs in sets} == {3}


def test_generated_integers_stay_within_the_examples():
    examples = [InputSet((torch.tensor([[6, 4, 5, 4]]),), {}, "example 0")]
    generated = generate_inputs(summed(torch.ones(1, 4, dtype=torch.int64)), 12, 0, examples)
    values = torch.cat([inputs.args[0].flatten() for inputs in generated])
    assert (values.min(), values.max()) == (4, 6)


def test_generated_integers_without_examples_are_0_or_1():
    bare = summed(torch.ones(1, 4, dtype=torch.int64))
    bare._example_inputs = None
    generated = generate_inputs(bare, 6, 0)
    values = torch.cat([inputs.args[0].flatten() for inputs in generated])
    assert set(values.tolist()) == {0, 1}


def test_generating_is_deterministic_and_leaves_the_global_generator_alone(embed):
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = save_inputs(generate_inputs(embed, 4, 7))
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert save_inputs(generate_inputs(embed, 4, 7)) == first
    assert save_inputs(generate_inputs(embed, 4, 8)) != first
    assert save_inputs(generate_inputs(embed, 2, 7)) == save_inputs(load_inputs(first)[:2])


def test_generated_sizes_respect_derived_and_equal_symbols():
    size = Dim("size", min=2, max=8)
    shapes = ({0: size}, {0: 2 * size, 1: size}, {0: size + 1})
    program = summed(torch.ones(4), torch.ones(8, 4), torch.ones(5), shapes=shapes)
    sets = generate_inputs(program, 3, 0)
    sizes = [[tuple(t.shape) for t in inputs.args] for inputs in sets]
    assert sizes[0] == [(2,), (4, 2), (3,)]
    assert sizes[1] == [(8,), (16, 8), (9,)]
    for inputs in sets:
        check_inputs(program, inputs)


def test_generated_sizes_are_among_the_shapes_that_a_package_lists():
    size, other = Dim("size", min=2, max=9), Dim("other", min=2, max=9)
    shapes = ({0: size}, {0: 2 * size, 1: other})
    program = summed(torch.ones(4), torch.ones(8, 4), shapes=shapes)
    # Core ML accepts a size of 1 where torch exports a minimum of 2, and the source doesn't accept
    # it.
    rows = [[8], [2], [1], [3]]
    listed = {"tensors_1": [[16, 3], [4, 2], [2, 5], [6, 9]], "tensors_0": rows}
    sets = generate_inputs(program, 24, 0, shapes=listed)
    sizes = [tuple(tuple(t.shape) for t in inputs.args) for inputs in sets]
    assert sizes[:2] == [((2,), (4, 2)), ((3,), (6, 9))]
    assert set(sizes) == {((2,), (4, 2)), ((3,), (6, 9)), ((8,), (16, 3))}
    for inputs in sets:
        check_inputs(program, inputs)


def test_generated_sizes_without_a_bound_end_at_the_example():
    program = summed(torch.ones(6), shapes=({0: Dim("size")},))
    assert [s.args[0].shape[0] for s in generate_inputs(program, 2, 0)] == [1, 6]
    larger = [InputSet((torch.ones(11),))]
    assert [s.args[0].shape[0] for s in generate_inputs(program, 2, 0, larger)] == [1, 11]


def test_generated_sizes_stay_modest():
    shapes = ({0: Dim("a", max=10**6)}, {0: Dim("b", max=10**5), 1: Dim("c", max=10**5)})
    program = summed(torch.ones(4), torch.ones(4, 5), shapes=shapes)
    largest = generate_inputs(program, 2, 0)[1]
    assert largest.args[0].shape[0] == LONGEST_DIMENSION
    assert largest.args[1].numel() <= MOST_ELEMENTS


def test_a_tensor_of_fixed_size_may_be_large_and_keeps_no_other_small():
    large = torch.ones(MOST_ELEMENTS + 1)
    assert generate_inputs(summed(large), 1, 0)[0].args[0].shape == large.shape
    program = summed(large, torch.ones(4), shapes=({}, {0: Dim("n", max=8)}))
    assert generate_inputs(program, 2, 0)[1].args[1].shape[0] == 8


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.complex64])
def test_generated_floats_are_standard_normal(dtype):
    (inputs,) = generate_inputs(summed(torch.ones(4000, dtype=dtype)), 1, 0)
    value = inputs.args[0]
    assert value.dtype is dtype
    assert abs(value.to(torch.complex128).abs().square().mean() - 1) < 0.1


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int32, torch.bool])
def test_generated_dtypes(dtype):
    (inputs,) = generate_inputs(summed(torch.ones(64).to(dtype)), 1, 0)
    assert inputs.args[0].dtype is dtype


def test_generated_tensors_have_the_layout_of_the_export():
    x = torch.ones(2, 3, 4, 4).to(memory_format=torch.channels_last)
    for inputs in generate_inputs(summed(x, shapes=({0: Dim("batch", max=4)},)), 3, 0):
        assert inputs.args[0].is_contiguous(memory_format=torch.channels_last)


def test_a_wrong_example_is_refused_before_generating(embed):
    with pytest.raises(PipelineError, match="argument 'tokens': dtype"):
        generate_inputs(embed, 1, 0, [embed_inputs(tokens=torch.ones(1, 4))])


DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.bool,
    torch.int64,
    torch.uint8,
    torch.complex64,
]


def same(a, b):
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)
    if isinstance(a, (tuple, list)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    return type(a) is type(b) and (a == b or (a != a and b != b))


TENSORS = st.builds(
    lambda shape, dtype: torch.arange(math.prod(shape)).reshape(shape).to(dtype),
    st.lists(st.integers(0, 3), max_size=3),
    st.sampled_from(DTYPES),
)
LEAVES = st.one_of(
    TENSORS, st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=4)
)
TREES = st.recursive(
    LEAVES,
    lambda children: st.one_of(
        st.lists(children, max_size=3),
        st.lists(children, max_size=3).map(tuple),
        st.dictionaries(st.text(max_size=3), children, max_size=3),
    ),
    max_leaves=8,
)
SETS = st.builds(
    InputSet,
    st.lists(TREES, max_size=3).map(tuple),
    st.dictionaries(st.text(max_size=3), TREES, max_size=2),
    st.text(max_size=5),
)


@given(st.lists(SETS, max_size=3))
def test_stored_sets_come_back_the_same(sets):
    data = save_inputs(sets)
    loaded = load_inputs(data)
    assert len(loaded) == len(sets)
    for before, after in zip(sets, loaded, strict=True):
        assert same(before.args, after.args)
        assert same(before.kwargs, after.kwargs)
        assert before.origin == after.origin
    assert save_inputs(loaded) == data


def test_stored_bytes_depend_on_values_alone():
    x = torch.arange(48.0).reshape(1, 3, 4, 4)
    plain = save_inputs([InputSet((x, x[0]))])
    strided = x.to(memory_format=torch.channels_last)
    assert save_inputs([InputSet((strided.requires_grad_(), strided[0]))]) == plain


def test_nothing_is_pickled():
    data = save_inputs([InputSet((torch.ones(2), "text", 1.5), {"k": None})])
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    assert header["__metadata__"].keys() == {"inputs"}
    assert len(data) == 8 + int.from_bytes(data[:8], "little") + 8


def test_the_tree_is_strict_json():
    data = save_inputs([InputSet((math.nan, math.inf, -0.0))])
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    json.loads(header["__metadata__"]["inputs"], parse_constant=pytest.fail)


def test_what_cannot_be_stored_is_refused():
    with pytest.raises(PipelineError, match=r"mine: args\[0\] is of type object"):
        save_inputs([InputSet((object(),), origin="mine")])


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[:-1],
        lambda data: b"\x80\x04" + data,
        lambda data: data.replace(b"inputs", b"inputz"),
        lambda data: data.replace(b"tensor", b"tensoz"),
    ],
)
def test_damaged_bytes_are_refused(damage):
    data = save_inputs([InputSet((torch.ones(2),))])
    with pytest.raises(PipelineError, match="cannot be read"):
        load_inputs(damage(data))
