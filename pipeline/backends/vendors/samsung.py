"""Samsung, for Exynos' NPUs: executorch/backends/samsung."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from pipeline.backends.entry import Backend, Constructor, built, sdk
from pipeline.backends.options import Options
from pipeline.backends.quantize_options import QuantizeConfig, Static
from pipeline.backends.vendors import NO_DYNAMIC, UNTRIED, libraries, require, runs_on

if TYPE_CHECKING:
    from executorch.exir.backend.partitioner import Partitioner
    from torchao.quantization.pt2e.quantizer import Quantizer


class SamsungOptions(Options):
    """The argument of `gen_samsung_backend_compile_spec`, which `EnnPartitioner` takes."""

    chipset: Literal["E9955", "E9965"] = Field(description="The chip that the package runs on.")


class SamsungQuantize(QuantizeConfig):
    """Options of `EnnQuantizer.setup_quant_params`: 8-bit activations and weights."""

    quantizer: Literal["samsung"]
    dynamic: Static = False
    per_channel: bool = Field(
        default=True, description="Give each output channel of a weight a scale of its own."
    )


def _samsung_partitioner(options: SamsungOptions) -> Partitioner:
    require(SAMSUNG)
    from executorch.backends.samsung.partition.enn_partitioner import EnnPartitioner
    from executorch.backends.samsung.serialization.compile_options import (
        gen_samsung_backend_compile_spec,
    )

    return EnnPartitioner([gen_samsung_backend_compile_spec(options.chipset)])


def _samsung_quantizer(config: SamsungQuantize) -> Quantizer:
    require(SAMSUNG)
    from executorch.backends.samsung.quantizer.quantizer import EnnQuantizer, Precision

    made = EnnQuantizer()
    made.setup_quant_params(Precision.A8W8, is_per_channel=config.per_channel)
    return made


SAMSUNG = Backend(
    name="samsung",
    backend_id="EnnBackend",
    summary="Exynos NPUs",
    options=SamsungOptions,
    quantizer=SamsungQuantize,
    make_partitioner=_samsung_partitioner,
    make_quantizer=_samsung_quantizer,
    requirements=(
        sdk(
            "Samsung's Exynos AI LiteCore SDK",
            "EXYNOS_AI_LITECORE_ROOT",
            "Samsung's developer site",
        ),
        built(
            "executorch.backends.samsung.python.PyEnnWrapperAdaptor",
            "build executorch from source with the SDK (backends/samsung/build.sh)",
        ),
    ),
    facts=libraries("EXYNOS_AI_LITECORE_ROOT"),
    unreproducible=UNTRIED,
    cannot_run=runs_on("Exynos devices"),
    constructors=(
        Constructor(
            "executorch.backends.samsung.partition.enn_partitioner:EnnPartitioner",
            left_out={"compile_specs": "made of `chipset`"},
        ),
        Constructor(
            "executorch.backends.samsung.serialization.compile_options:"
            "gen_samsung_backend_compile_spec"
        ),
        Constructor(
            "executorch.backends.samsung.quantizer.quantizer:EnnQuantizer.setup_quant_params",
            of="quantizer",
            renamed={"per_channel": "is_per_channel"},
            left_out={
                "quant_dtype": "A8W8 is all that there is",
                "is_qat": "programs come here trained",
            },
        ),
    ),
    beyond=NO_DYNAMIC,
    looks_into=frozenset(),
)


ENTRIES = (SAMSUNG,)
