"""MediaTek, for Dimensity's NPUs: executorch/backends/mediatek."""

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


class MediatekOptions(Options):
    """Options of `NeuropilotPartitioner` and of its compile specs."""

    platform: Literal["mt6989", "mt6991", "mt6993"] = Field(
        description="The chip that the package runs on."
    )
    op_types_to_skip: Distinct[str] | None = Field(
        default=None,
        description="Operators that stay outside the delegate, such as aten.relu.default.",
    )
    op_names_to_skip: Distinct[str] | None = Field(
        default=None, description="Nodes that stay outside the delegate."
    )
    import_forever: bool = Field(
        default=False, description="Keep the compiled program in memory as long as it is loaded."
    )
    shared_blob: str | None = Field(
        default=None,
        min_length=1,
        description="A key; methods with the same one store the weights that they share once.",
    )
    compiler_options: Distinct[str] | None = Field(
        default=None,
        description="More options of MediaTek's compiler, each `name` or `name=value`.",
    )


class MediatekQuantize(QuantizeConfig):
    """The setting of `NeuropilotQuantizer`."""

    quantizer: Literal["mediatek"]
    dynamic: Static = False
    precision: Literal["A16W16", "A16W8", "A16W4", "A8W8", "A8W4"] = Field(
        default="A8W8", description="Bits of activations (A) and of weights (W)."
    )


def _mediatek_partitioner(options: MediatekOptions) -> Partitioner:
    require(MEDIATEK)
    from executorch.backends.mediatek.partitioner import NeuropilotPartitioner
    from executorch.exir.backend.compile_spec_schema import CompileSpec

    told: dict[str, str] = {"platform-config": options.platform}
    for option in options.compiler_options or ():
        name, _, value = option.partition("=")
        told[name] = value
    if options.shared_blob is not None:
        told["ExtractSharedBlobKey"] = options.shared_blob
    specs = [CompileSpec(name, value.encode()) for name, value in told.items()]
    if options.import_forever:
        specs.append(CompileSpec("ImportForever", b"\x01"))
    return NeuropilotPartitioner(
        specs,
        op_types_to_skip=set(options.op_types_to_skip or ()),
        op_names_to_skip=set(options.op_names_to_skip or ()),
    )


def _mediatek_quantizer(config: MediatekQuantize) -> Quantizer:
    require(MEDIATEK)
    from executorch.backends.mediatek.quantizer import NeuropilotQuantizer, Precision

    made = NeuropilotQuantizer()
    made.setup_precision(Precision[config.precision])
    return made


_NEUROPILOT = "get MediaTek's NeuroPilot Express SDK from its portal and install its wheels"
MEDIATEK = Backend(
    name="mediatek",
    backend_id="NeuropilotBackend",
    summary="Dimensity NPUs",
    options=MediatekOptions,
    quantizer=MediatekQuantize,
    joint=True,
    make_partitioner=_mediatek_partitioner,
    make_quantizer=_mediatek_quantizer,
    requirements=(
        Requirement("mtk_converter", _NEUROPILOT, lambda: importable("mtk_converter")),
        Requirement("mtk_neuron", _NEUROPILOT, lambda: importable("mtk_neuron")),
    ),
    facts=versions("mtk_converter", "mtk_neuron"),
    unreproducible=UNTRIED,
    cannot_run=runs_on("MediaTek devices"),
    constructors=(
        Constructor(
            "executorch.backends.mediatek.partitioner:NeuropilotPartitioner",
            left_out={"compile_spec": "made of the other options"},
        ),
        Constructor(
            "executorch.backends.mediatek.preprocess:[spec.key]",
            renamed={
                "platform": "platform-config",
                "import_forever": "ImportForever",
                "shared_blob": "ExtractSharedBlobKey",
            },
        ),
        Constructor(
            "executorch.backends.mediatek.quantizer.quantizer:NeuropilotQuantizer.setup_precision",
            of="quantizer",
        ),
    ),
    beyond={
        **NO_DYNAMIC,
        "compiler_options": "compile specs, which go to the compiler",
    },
    looks_into=frozenset(),
)


ENTRIES = (MEDIATEK,)
