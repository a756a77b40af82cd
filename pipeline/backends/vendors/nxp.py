"""NXP, for the Neutron NPU of i.MX RT: executorch/backends/nxp."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from pipeline.backends.entry import Backend, Constructor, Requirement, importable
from pipeline.backends.options import Distinct, Options
from pipeline.backends.quantize_options import QuantizeConfig, Static
from pipeline.backends.vendors import NO_DYNAMIC, UNTRIED, require, runs_on, versions

if TYPE_CHECKING:
    from executorch.exir.backend.partitioner import Partitioner
    from torchao.quantization.pt2e.quantizer import Quantizer


class NxpOptions(Options):
    """Options of `NeutronPartitioner` and of `generate_neutron_compile_spec`."""

    target: str = Field(
        min_length=1, description="The chip that the package runs on, such as imxrt700."
    )
    extra_flags: str | None = Field(
        default=None, min_length=1, description="More flags of NXP's converter."
    )
    operators_not_to_delegate: Distinct[str] | None = Field(
        default=None,
        description="Operators that stay outside the delegate: those whose node's name holds one "
        "of these.",
    )
    use_neutron_for_format_conversion: bool = Field(
        default=True, description="Let the NPU transpose inputs and outputs."
    )
    fetch_constants_to_sram: bool = Field(
        default=False, description="Fetch weights from flash piece by piece, where SRAM is short."
    )
    use_profiling: bool = Field(default=False, description="Profile the delegate.")
    allow_no_op_partitions: bool = Field(
        default=False, description="Delegate partitions too that compute nothing."
    )


class NxpQuantize(QuantizeConfig):
    """The argument of `NeutronQuantizer`: int8 activations and weights."""

    quantizer: Literal["nxp"]
    dynamic: Static = False
    target: str = Field(
        default="imxrt700", min_length=1, description="The chip that the package runs on."
    )


def _nxp_partitioner(options: NxpOptions) -> Partitioner:
    require(NXP)
    from executorch.backends.nxp.backend.custom_delegation_options import CustomDelegationOptions
    from executorch.backends.nxp.backend.neutron_target_spec import NeutronTargetSpec
    from executorch.backends.nxp.neutron_partitioner import NeutronPartitioner
    from executorch.backends.nxp.nxp_backend import generate_neutron_compile_spec

    without = options.operators_not_to_delegate
    specs = generate_neutron_compile_spec(
        options.target,
        extra_flags=options.extra_flags,
        operators_not_to_delegate=list(without) if without else None,
        use_neutron_for_format_conversion=options.use_neutron_for_format_conversion,
        fetch_constants_to_sram=options.fetch_constants_to_sram,
        use_profiling=options.use_profiling,
    )
    return NeutronPartitioner(
        specs,
        NeutronTargetSpec(options.target),
        custom_delegation_options=CustomDelegationOptions(
            allow_no_op_partitions=options.allow_no_op_partitions
        ),
    )


def _nxp_quantizer(config: NxpQuantize) -> Quantizer:
    require(NXP)
    from executorch.backends.nxp.backend.neutron_target_spec import NeutronTargetSpec
    from executorch.backends.nxp.quantizer.neutron_quantizer import NeutronQuantizer

    return NeutronQuantizer(NeutronTargetSpec(config.target))


NXP = Backend(
    name="nxp",
    backend_id="NeutronBackend",
    summary="i.MX RT's Neutron NPU",
    options=NxpOptions,
    quantizer=NxpQuantize,
    make_partitioner=_nxp_partitioner,
    make_quantizer=_nxp_quantizer,
    edge_operators=("aten.prelu.default",),
    requirements=(
        Requirement(
            "eiq_neutron_sdk",
            "install NXP's eIQ Neutron SDK as ExecuTorch's examples/nxp/setup.sh does",
            lambda: importable("eiq_neutron_sdk"),
        ),
    ),
    facts=versions("eiq_neutron_sdk"),
    unreproducible=UNTRIED,
    cannot_run=runs_on("i.MX RT devices"),
    constructors=(
        Constructor(
            "executorch.backends.nxp.neutron_partitioner:NeutronPartitioner",
            left_out={
                "compile_spec": "made of the other options",
                "neutron_target_spec": "made of `target`",
                "custom_delegation_options": "made of `allow_no_op_partitions`",
                "post_quantization_state_dict": "tensors",
                "preserve_ops": "a list of operators as objects",
                "check_op_support": "a function",
            },
        ),
        Constructor(
            "executorch.backends.nxp.nxp_backend:generate_neutron_compile_spec",
            renamed={"target": "config"},
            left_out={
                "system_config": "is not read",
                "intermediates_dir": "writes files beside the build's",
                "dump_kernel_selection_code": "writes files beside the build's",
            },
        ),
        Constructor(
            "executorch.backends.nxp.backend.custom_delegation_options:CustomDelegationOptions"
        ),
        Constructor(
            "executorch.backends.nxp.quantizer.neutron_quantizer:NeutronQuantizer",
            of="quantizer",
            renamed={"target": "neutron_target_spec"},
            left_out={"is_qat": "programs come here trained"},
        ),
    ),
    beyond=NO_DYNAMIC,
    looks_into=frozenset(),
)


ENTRIES = (NXP,)
