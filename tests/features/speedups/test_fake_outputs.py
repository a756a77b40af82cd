"""torch keeps the same results of fake tensors, but makes fewer tensors to check what it keeps."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from pipeline.features.speedups.fake_outputs import make_info
from pipeline.program.patching import replaced, wrapped


def compute(x):
    """Return values of all kinds that torch keeps, or refuses to keep."""
    with torch.inference_mode():
        inferred = torch.zeros(3) + 1
    weight = torch.ones(4, requires_grad=True)
    wave = torch.complex(x, x)
    return [
        *(x + 1, x.mul(2), x.t(), x[1:].sum(0), x.unbind(1)[0], x.clone().add_(1), x > 1),
        *(x.double(), x.to(memory_format=torch.contiguous_format), torch.zeros_like(x)),
        *(wave, wave.conj(), wave.conj().imag, wave * wave.conj(), torch.view_as_real(wave)),
        *(weight * 2, (weight * 2).detach(), weight.view(2, 2), inferred, inferred + 1),
        *(x.max(dim=1), torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.qint8)),
        *(torch.aminmax(x), torch.nn.functional.linear(x, weight[None])),
    ]


def show(value):
    if isinstance(value, tuple):
        return [show(each) for each in value]
    keys = torch._C._dispatch_keys(value).raw_repr()
    return str(value), value.stride() if value.layout is torch.strided else None, keys


def run(is_symbolic):
    """Return all values twice, what was kept of them, and how many tensors were made from that."""
    FakeTensorMode.cache_clear()
    made = []

    def make(original, self, state, entry, *rest):
        made.append(entry)
        return original(self, state, entry, *rest)

    sizes = [DimDynamic.DYNAMIC if is_symbolic else DimDynamic.STATIC, DimDynamic.STATIC]
    environment = ShapeEnv()
    mode = FakeTensorMode(shape_env=environment, allow_non_fake_inputs=True)
    context = StatelessSymbolicContext(dynamic_sizes=sizes)
    x = mode.from_tensor(torch.ones(5, 4), symbolic_context=context)
    with mode, wrapped(FakeTensorMode, "_get_output_tensor_from_cache_entry", make):
        values = [show(each) for each in (*compute(x), *compute(x))]
    entries = [type(each) for each in FakeTensorMode.cache.values()]
    entries += [type(each) for each in environment.fake_tensor_cache.values()]
    return values, entries, FakeTensorMode.cache_info(), len(made)


@pytest.mark.parametrize("is_symbolic", [False, True])
def test_the_same_is_kept(is_symbolic):
    *expected, made = run(is_symbolic)
    with replaced(FakeTensorMode, "_get_output_info_for_cache_entry", make_info):
        *found, made_less = run(is_symbolic)
    assert found == expected
    assert made_less < made
