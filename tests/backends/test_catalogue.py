"""Checks that the catalogue promises nothing that the installed ExecuTorch can't do."""

from importlib import metadata
from typing import get_args

import pytest
import torch
from executorch.backends.xnnpack.partition.config import ALL_PARTITIONER_CONFIGS, xnnpack_config
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.backends.xnnpack.quantizer import xnnpack_quantizer
from executorch.exir.backend.backend_details import BackendDetails
from pydantic import ValidationError

from pipeline.backends import (
    BACKENDS,
    PartitionerSpec,
    QuantizeConfig,
    make_partitioners,
    make_passes,
    make_quantizer,
)
from pipeline.backends.options import NAMES
from pipeline.features.to_backend.registration import preprocess_function
from pipeline.features.torchao.entries import Scheme, TorchaoQuantize
from pipeline.features.xnnpack.entries import (
    XnnpackOptions,
    XnnpackPrecision,
    XnnpackQuantize,
)

# Partitioner and quantizer options that have no default.
NEEDED = {"ethos-u": {"target": "ethos-u55-128"}, "tosa": {"tosa_spec": "TOSA-1.0+INT"}}
PRECISIONS = xnnpack_config.ConfigPrecisionType


def partitioner(**options):
    (made,) = make_partitioners(
        [PartitionerSpec(name="xnnpack", options=XnnpackOptions(**options))]
    )
    return made


def configs(**options):
    return list(partitioner(**options).target_partitioner_configs.values())


def quantization(**options):
    return make_quantizer(XnnpackQuantize(quantizer="xnnpack", **options)).global_config


@pytest.mark.parametrize("backend", BACKENDS.values(), ids=lambda backend: backend.name)
def test_entry_agrees_with_the_backend(backend):
    assert BACKENDS[backend.name] is backend
    missing = ", ".join(f"{need.what}: {need.remedy}" for need in backend.host.missing())
    if missing:
        pytest.skip(f"{backend.name} needs {missing}")
    needed = NEEDED.get(backend.name, {})
    spec = PartitionerSpec(name=backend.name, options=backend.options(**needed))
    if backend.lowering.make_passes is not None:
        assert make_partitioners([spec]) == [] and make_passes([spec])
        return
    (made,) = make_partitioners([spec])
    assert made.delegation_spec.backend_id == backend.backend_id
    if backend.preprocessing.function:
        function = preprocess_function(backend.backend_id)
        assert f"{function.__module__}:{function.__qualname__}" == backend.preprocessing.function
    else:
        classes = (b for b in BackendDetails.__subclasses__() if b.__name__ == backend.backend_id)
        (details,) = classes
        overridden = details.preprocess_multimethod.__func__
        assert backend.preprocessing.joint == (
            overridden is not BackendDetails.preprocess_multimethod.__func__
        )
    assert all(metadata.version(name) for name in backend.host.distributions)
    if backend.quantization is not None:
        options = backend.quantization.options
        assert issubclass(options, QuantizeConfig)
        assert options(quantizer=backend.name, **needed).quantizer == backend.name


def test_partitioners_keep_the_order_of_the_config():
    options = [XnnpackOptions(per_op_mode=True), XnnpackOptions()]
    made = make_partitioners(PartitionerSpec(name="xnnpack", options=each) for each in options)
    assert [each.per_op_mode for each in made] == [True, False]


def test_partitioner_defaults_are_the_constructors():
    ours, theirs = partitioner(), XnnpackPartitioner()
    assert [type(c) for c in configs()] == [
        type(c) for c in theirs.target_partitioner_configs.values()
    ]
    assert ours.per_op_mode == theirs.per_op_mode
    for mine, other in zip(configs(), theirs.target_partitioner_configs.values(), strict=True):
        assert vars(mine) == vars(other)


def test_names_are_the_installed_ones():
    assert list(NAMES["xnnpack_configs"]) == [c.__name__ for c in ALL_PARTITIONER_CONFIGS]
    assert list(get_args(XnnpackPrecision)) == [p.name.lower() for p in PRECISIONS]


@pytest.mark.parametrize("per_op_mode", [False, True])
def test_per_op_mode_takes_effect(per_op_mode):
    assert partitioner(per_op_mode=per_op_mode).per_op_mode is per_op_mode


@pytest.mark.parametrize("forced", [False, True])
def test_force_non_static_weights_takes_effect(forced):
    made = configs(force_non_static_weights_for_f32_linear=forced)
    assert {config.force_non_static_weights_for_f32_linear for config in made} == {forced}


@pytest.mark.parametrize("name", get_args(XnnpackPrecision))
def test_config_precisions_take_effect(name):
    enabled = [c.enabled_precision_types for c in configs(config_precisions=[name])]
    assert all(set(precisions) <= {PRECISIONS[name.upper()]} for precisions in enabled)
    assert any(enabled)


def test_configs_take_effect():
    chosen = ["MulConfig", "AddConfig"]
    assert [type(config).__name__ for config in configs(configs=chosen)] == chosen


@pytest.mark.parametrize("field", ["configs", "config_precisions"])
@pytest.mark.parametrize("value", [[], ["nonsense"], None])
def test_lists_that_would_silently_mean_all_are_refused(field, value):
    if value is None:
        value = ("AddConfig" if field == "configs" else "fp32",) * 2
    with pytest.raises(ValidationError):
        XnnpackOptions(**{field: value})


def test_operators_are_those_that_the_installed_quantizer_annotates():
    patterns = xnnpack_quantizer.XNNPACKQuantizer.SUPPORTED_PATTERNS
    annotated = {
        str(operator).split(".")[1]
        for pattern in patterns
        for operator in pattern.op_overloads
        if not pattern.is_qat
    }
    assert set(NAMES["xnnpack_operators"]) == annotated - {"convolution"}


def test_torchao_schemes_are_those_of_the_installed_one():
    from pipeline.features.torchao.weights import _linear_config

    for scheme in get_args(Scheme):
        for algorithm in ("affine", "hqq_scale_only"):
            options = {"scheme": scheme, "algorithm": algorithm, "group_size": 64}
            made = _linear_config(TorchaoQuantize(quantizer="torchao", **options))
            assert (
                made.weight_dtype is {"4": torch.int4, "8": torch.int8}[scheme.split("int")[-1][0]]
            )
            assert made.intx_choose_qparams_algorithm == algorithm


@pytest.mark.parametrize("dynamic", [False, True])
def test_dynamic_takes_effect(dynamic):
    made = quantization(dynamic=dynamic)
    assert made.input_activation.is_dynamic is dynamic
    assert (made.output_activation is None) is dynamic


@pytest.mark.parametrize(
    ("per_channel", "scheme"),
    [(True, torch.per_channel_symmetric), (False, torch.per_tensor_symmetric)],
)
def test_per_channel_takes_effect(per_channel, scheme):
    assert quantization(per_channel=per_channel).weight.qscheme is scheme


def test_activation_range_takes_effect():
    made = quantization(act_qmin=-100, act_qmax=99).input_activation
    assert (made.quant_min, made.quant_max) == (-100, 99)
    with pytest.raises(ValidationError, match="XNNPACK itself chooses"):
        quantization(act_qmin=-100, dynamic=True)


def test_weight_range_takes_effect():
    weight = quantization(weight_qmin=-8, weight_qmax=7).weight
    assert (weight.quant_min, weight.quant_max) == (-8, 7)
    assert quantization().weight.quant_min == -127


def test_quantizer_defaults_are_static_per_channel():
    theirs = xnnpack_quantizer.get_symmetric_quantization_config(is_per_channel=True)
    ours = quantization()
    assert (ours.weight.quant_min, ours.weight.quant_max) == (
        theirs.weight.quant_min,
        theirs.weight.quant_max,
    )
    assert ours.weight.qscheme is theirs.weight.qscheme
    assert ours.input_activation.is_dynamic is theirs.input_activation.is_dynamic is False
