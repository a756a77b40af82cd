"""Parametrized weights, tensor subclasses and quantized models."""

import torch
from torch import nn
from torch.export import export

from tests.sweep.cases import export_of, linear, program, randn


@program
def weight_norm():
    return export_of(torch.nn.utils.parametrizations.weight_norm(linear()).eval(), (randn(2, 8),))


@program
def weight_norm_old():
    return export_of(torch.nn.utils.weight_norm(linear()).eval(), (randn(2, 8),))


@program
def spectral():
    return export_of(torch.nn.utils.parametrizations.spectral_norm(linear()).eval(), (randn(2, 8),))


@program
def subclass_int8wo():
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    m = nn.Sequential(linear(32, 32)).eval()
    quantize_(m, Int8WeightOnlyConfig())
    return export_of(m, (randn(2, 32),))


@program
def subclass_8da4w():
    from torchao.quantization import Int8DynamicActivationIntxWeightConfig, quantize_

    m = nn.Sequential(linear(32, 32)).eval()
    quantize_(m, Int8DynamicActivationIntxWeightConfig(weight_dtype=torch.int4))
    return export_of(m, (randn(2, 32),))


@program
def subclass_unwrapped():
    from torchao.quantization import Int8DynamicActivationIntxWeightConfig, quantize_
    from torchao.utils import unwrap_tensor_subclass

    m = nn.Sequential(linear(32, 32)).eval()
    quantize_(m, Int8DynamicActivationIntxWeightConfig(weight_dtype=torch.int4))
    return export_of(unwrap_tensor_subclass(m), (randn(2, 32),))


@program
def subclass_decomposed():
    from torchao.quantization import Int8DynamicActivationIntxWeightConfig, quantize_

    m = nn.Sequential(linear(32, 32)).eval()
    quantize_(m, Int8DynamicActivationIntxWeightConfig(weight_dtype=torch.int4))
    return export_of(m, (randn(2, 32),)).run_decompositions({})


@program
def pt2e():
    from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import (
        XNNPACKQuantizer,
        get_symmetric_quantization_config,
    )
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    m = nn.Sequential(linear(), nn.ReLU(), linear()).eval().requires_grad_(False)
    g = export(m, (randn(2, 8),)).module(check_guards=False)
    p = prepare_pt2e(g, XNNPACKQuantizer().set_global(get_symmetric_quantization_config()))
    p(randn(2, 8))
    c = convert_pt2e(p)
    return export(c, (randn(2, 8),))


@program
def subclass_int4():
    from torchao.quantization import IntxWeightOnlyConfig, quantize_
    from torchao.quantization.granularity import PerGroup

    m = nn.Sequential(nn.Embedding(20, 32), linear(32, 32)).eval()
    quantize_(
        m,
        IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(32)),
        lambda m, _: isinstance(m, (nn.Linear, nn.Embedding)),
    )
    return export_of(m, (torch.tensor([1, 2]),))


class OwnParameter(nn.Parameter):
    pass


class OwnTensor(torch.Tensor):
    pass


@program
def subclass_own():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = OwnParameter(torch.ones(4), requires_grad=False)
            self.register_buffer("c", torch.ones(4).as_subclass(OwnTensor))

        def forward(self, x):
            return x * self.w + self.c

    return export_of(M(), (randn(4),))


@program
def subclass_buffer_param():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("w", nn.Parameter(torch.ones(4), requires_grad=False))
            self.k = nn.Buffer(torch.ones(4))

        def forward(self, x):
            return x * self.w + self.k

    return export_of(M(), (randn(4),))
