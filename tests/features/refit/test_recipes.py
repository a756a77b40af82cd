"""numpy reproduces what torch computes, to the last bit."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.compile.inspect.arrays import UnknownValueError, View, look
from pipeline.compile.inspect.storages import storage_bytes, view_of
from pipeline.features.refit.archive_storages import read_storage
from pipeline.features.refit.hooks import watched
from pipeline.features.refit.recipes import Evaluation, is_repeatable
from pipeline.features.refit.values import cast
from pipeline.features.refit.watch import Watch

FLOATS = [torch.float32, torch.float64]
NUMBERS = [*FLOATS, torch.int8, torch.int32, torch.int64, torch.uint8]
EVERY = [*NUMBERS, torch.float16, torch.bfloat16, torch.bool]
CASTS = [torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz]


@st.composite
def tensors(draw, dtypes=EVERY, most=4):
    """Draw a tensor of bits that hypothesis chooses, not always contiguous in memory."""
    sizes = draw(st.lists(st.integers(1, 4), max_size=most))
    dtype, seed = draw(st.sampled_from(dtypes)), draw(st.integers(0, 1 << 30))
    generator = torch.Generator().manual_seed(seed)
    count = int(np.prod(sizes)) * torch.empty(0, dtype=dtype).element_size()
    flat = torch.randint(0, 256, (count,), dtype=torch.uint8, generator=generator)
    flat = flat % 2 if dtype == torch.bool else flat
    tensor = flat.view(dtype).reshape(sizes)
    if dtype.is_floating_point and draw(st.booleans()):  # of ordinary magnitude
        tensor = torch.randn(sizes, generator=generator).to(dtype)
    order = draw(st.permutations(range(len(sizes))))
    return tensor.permute(*order) if order else tensor


def repeated(function, *given):
    """Return a function's result, and what its recipe makes of the same constants."""
    watch = Watch()
    for number, tensor in enumerate(given):
        watch.add_source(tensor, "run", "weights", str(number))
    with watched(watch):
        made = function(*given)
    evaluation = Evaluation(watch.steps, lambda step: storage_bytes(given[int(step["name"])]))
    view = watch.find(made)
    assert view is not None, "nothing is known of it"
    return made, read_storage(evaluation.storage(view.step)), evaluation.values(view), watch


def same(function, *given):
    made, storage, values, _ = repeated(function, *given)
    assert storage.tobytes() == storage_bytes(made).tobytes()
    assert values.tobytes() == look(storage_bytes(made), view_of(made)).tobytes()


LAYOUTS = {
    "the same": lambda x: x.clone(),
    "contiguous": lambda x: x.contiguous().clone(),
    "turned": lambda x: x.transpose(0, -1).contiguous().clone() if x.ndim else x.clone(),
    "last part": lambda x: x[-1:].clone() if x.ndim else x.clone(),
    "flat": lambda x: x.reshape(-1).clone(),
    "one more": lambda x: x.unsqueeze(-1).clone(),
    "channels last": lambda x: (
        x.contiguous(memory_format=torch.channels_last).clone() if x.ndim == 4 else x.clone()
    ),
    "copied into": lambda x: torch.empty_like(x).copy_(x),
    "deep copy": lambda x: __import__("copy").deepcopy(x),
}


@pytest.mark.parametrize("name", LAYOUTS)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_layouts(name, data):
    same(LAYOUTS[name], data.draw(tensors()))


def fold(weight, bias, mean, variance, scale, shift):
    return torch.nn.utils.fusion.fuse_conv_bn_weights(
        weight, bias, mean, variance, 1e-5, scale, shift
    )


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 1 << 30), channels=st.integers(1, 40), part=st.sampled_from([0, 1]))
def test_batch_norm_is_folded_bit_for_bit(seed, channels, part):
    """Covers all magnitudes, including denormal numbers."""
    torch.manual_seed(seed)
    size = 10.0 ** float(torch.randint(-42, 5, ()))
    weight, bias = torch.randn(channels, 3, 3, 3) * size, torch.randn(channels) * size
    mean, variance = torch.randn(channels), torch.rand(channels) * 10 ** float(torch.randn(()) * 4)
    scale, shift = torch.randn(channels), torch.randn(channels)
    same(lambda *all: fold(*all)[part].detach(), weight, bias, mean, variance, scale, shift)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 1 << 30), part=st.sampled_from([0, 1]))
def test_batch_norm_alone_is_decomposed_bit_for_bit(seed, part):
    """In double precision, to which a float is added (XNNPACK's `DecomposeBatchNorm`)."""
    from executorch.backends.xnnpack._passes.decompose_batch_norm import DecomposeBatchNorm

    torch.manual_seed(seed)
    given = torch.randn(9), torch.rand(9) * 10 ** float(torch.randn(()) * 4), torch.randn(9)
    decompose = DecomposeBatchNorm.compute_w_and_b
    same(lambda *all: decompose(1e-5, *all)[part], *given, torch.randn(9))


UNARY = ["neg", "abs", "sqrt", "rsqrt", "reciprocal"]


@pytest.mark.parametrize("name", UNARY)
@settings(max_examples=40, deadline=None)
@given(tensor=tensors(FLOATS))
def test_functions_of_floats(name, tensor):
    function = getattr(torch, name)
    if not function(tensor).isnan().any():
        return same(function, tensor)
    # IEEE 754 doesn't define which of the many NaNs results.
    with pytest.raises(UnknownValueError, match="a NaN that is computed from constants"):
        same(function, tensor)


PAIRS = {
    "sum": lambda x, y: x + y,
    "difference": lambda x, y: x - y,
    "product": lambda x, y: x * y,
    "with a number": lambda x, y: x * 3 + y,
    "one row": lambda x, y: x + y.flatten()[:1],
}


@pytest.mark.parametrize("name", PAIRS)
@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 1 << 30), dtype=st.sampled_from(NUMBERS))
def test_functions_of_two(name, seed, dtype):
    torch.manual_seed(seed)
    x, y = (
        torch.randn(3, 5).to(dtype) if dtype in FLOATS else torch.randint(0, 9, (3, 5)).to(dtype)
        for _ in range(2)
    )
    same(PAIRS[name], x, y)


@settings(max_examples=50, deadline=None)
@given(tensor=tensors(), part=st.booleans(), none=st.booleans())
def test_a_view_knows_how_its_elements_stand(tensor, part, none):
    if tensor.ndim and part:
        tensor = tensor[1 if none else -1 :]
    view = view_of(tensor)
    values = look(storage_bytes(tensor), view)
    assert (view.nbytes, view.is_contiguous) == (values.nbytes, values.flags.c_contiguous)


@pytest.mark.parametrize("new", EVERY)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_casts_are_torch_s_or_refused(new, data):
    tensor = data.draw(tensors([*EVERY, *CASTS]))
    old = str(tensor.dtype).removeprefix("torch.")
    values = look(storage_bytes(tensor), view_of(tensor))
    try:
        own = cast(values, old, str(new).removeprefix("torch."))
    except UnknownValueError:
        return
    made = tensor.to(new)
    nan = made.isnan() if new.is_floating_point else torch.zeros_like(made, dtype=torch.bool)
    told = torch.from_numpy(np.ascontiguousarray(own).view(np.uint8).copy()).view(new)
    told = told.reshape(made.shape)
    assert torch.equal(told[~nan], made[~nan])
    assert bool(told[nan].isnan().all())


def test_a_double_becomes_a_half_by_way_of_a_float():
    """As torch rounds it: from 1 + 2^-11 to the even number, and not up from slightly more."""
    values = torch.tensor([1 + 2**-11 + 2**-40, 1 + 3 * 2**-11 - 2**-40], dtype=torch.float64)
    same(lambda x: x.to(torch.float16), values)


@settings(max_examples=30, deadline=None)
@given(rows=st.integers(1, 5), columns=st.integers(1, 9), seed=st.integers(0, 1 << 30))
def test_four_bit_weights_are_packed_as_xnnpack_packs_them(rows, columns, seed):
    from executorch.backends.xnnpack.operators.node_visitor import NodeVisitor

    generator = torch.Generator().manual_seed(seed)
    weight = torch.randint(-8, 8, (rows, columns), generator=generator, dtype=torch.int8)
    made, storage, _, watch = repeated(lambda x: NodeVisitor.convert_to_qc4w(x), weight)
    assert storage.tobytes() == storage_bytes(made).tobytes()
    assert {guard["where"].split(",")[0].rpartition(".")[2] for guard in watch.guards} == {
        "convert_to_qc4w"
    }


HALVES = {"op": "aten.add.Tensor", "dtype": "float16", "sizes": [2], "strides": [1]}


def test_steps_that_round_elsewhere_are_not_repeated():
    view = View(0, "float16", (2,), (1,)).to_json()
    assert not is_repeatable({**HALVES, "args": [view, view]})
    assert not is_repeatable({**HALVES, "op": "aten.clamp.default", "args": [view, 0]})


COMPARED = [("int8", 2, True), ("int8", 0.5, False), ("bool", 2, False), ("float32", 2, True)]


@pytest.mark.parametrize(("dtype", "number", "repeatable"), COMPARED)
def test_comparisons_in_another_dtype_are_not_repeated(dtype, number, repeatable):
    """Torch compares an integer with a fraction as floats."""
    view = View(0, dtype, (2,), (1,)).to_json()
    step = {"op": "aten.lt.Scalar", "dtype": "bool", "sizes": [2], "strides": [1]}
    assert is_repeatable({**step, "args": [view, number]}) is repeatable


def test_which_of_two_zeros_is_the_least_is_not_repeated():
    same(lambda x: x.min(), torch.tensor([1.0, 0.5]))
    with pytest.raises(UnknownValueError, match="the sign of a zero"):
        same(lambda x: x.min(), torch.tensor([0.0, -0.0]))


def test_views_beyond_their_bytes_are_refused():
    """A recipe may come from a remote."""
    views = [View(0, "float32", (3,), (1,)), View(0, "float32", (2,), (1,), 1)]
    views += [View(0, "uint8", (2,), (-1,), 1), View(0, "uint8", (2,), (1,), 1 << 70)]
    for view in (*views, View(0, "uint8", (1 << 70,), (0,)), View(0, "uint8", (2,), (1 << 70,))):
        with pytest.raises((ValueError, OverflowError)):
            look(np.zeros(8, np.uint8), view)
