"""Ethos-U, NPUs of microcontrollers, through vela: executorch/backends/arm/ethosu."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, ValidationInfo, field_validator

from pipeline.backends.arm import (
    FLAG_SCHEMA,
    TOSA_TOOLS,
    ArmQuantize,
    PassOptions,
    backend,
    constructors,
    flag,
    rule,
)
from pipeline.backends.entry import extra
from pipeline.backends.options import Distinct, Options

# vela's accelerator configurations: an NPU and its multiply-accumulates in a cycle.
# fmt: off
EthosUTarget = Literal[
    "ethos-u55-32", "ethos-u55-64", "ethos-u55-128", "ethos-u55-256",
    "ethos-u65-256", "ethos-u65-512",
    "ethos-u85-128", "ethos-u85-256", "ethos-u85-512", "ethos-u85-1024", "ethos-u85-2048",
]
# What Arm/vela.ini defines.
EthosUSystem = Literal[
    "Ethos_U55_Deep_Embedded", "Ethos_U55_High_End_Embedded",
    "Ethos_U65_Embedded", "Ethos_U65_Mid_End", "Ethos_U65_High_End", "Ethos_U65_Client_Server",
    "Ethos_U85_SYS_Flash_Low", "Ethos_U85_SYS_Flash_High", "Ethos_U85_SYS_DRAM_Low",
    "Ethos_U85_SYS_DRAM_Mid", "Ethos_U85_SYS_DRAM_High",
]
EthosUMemory = Literal[
    "Sram_Only", "Shared_Sram", "Dedicated_Sram", "Dedicated_Sram_256KB", "Dedicated_Sram_384KB",
    "Dedicated_Sram_512KB",
]
# fmt: on
VelaFlag = Annotated[
    str,
    flag(
        (
            "--accelerator-config",
            "--config",
            "--system-config",
            "--memory-mode",
            "--output-dir",
            "--output-format",
            "--list-config-files",
            "--list-configs",
            "--supported-ops-report",
            "--help",
            "--version",
            "--api-version",
        )
    ),
    FLAG_SCHEMA,
]


class _EthosUTarget(Options):
    target: EthosUTarget = Field(
        description="The NPU and its multiply-accumulates in a cycle, such as ethos-u55-128."
    )


class EthosUOptions(PassOptions, _EthosUTarget):
    """Options of `EthosUPartitioner`: those of its `EthosUCompileSpec`."""

    system_config: EthosUSystem | None = Field(
        default=None,
        description="The system that vela compiles for, of those that Arm/vela.ini defines. By "
        "default Ethos_U55_High_End_Embedded, Ethos_U65_High_End or Ethos_U85_SYS_DRAM_Mid.",
    )
    memory_mode: EthosUMemory | None = Field(
        default=None,
        description="What the NPU's memories are used for, of what Arm/vela.ini defines. By "
        "default Shared_Sram for U55, Dedicated_Sram_384KB for U65, Sram_Only for U85.",
    )
    extra_flags: Distinct[VelaFlag] | None = Field(
        default=None,
        description="Further flags of vela, such as --optimise=Size or --arena-cache-size=400000.",
    )
    config_ini: Literal["Arm/vela.ini"] = Field(
        default="Arm/vela.ini",
        description="The file that defines systems and memory modes, of those that vela brings.",
    )

    @field_validator("system_config")
    @classmethod
    def _is_the_targets(cls, value: str | None, info: ValidationInfo) -> str | None:
        family = str(info.data.get("target", "")).rpartition("-")[0].replace("-", "_")
        if value is not None and family and not value.lower().startswith(family):
            raise rule("must be a system with the target's NPU")
        return value


class EthosUQuantize(ArmQuantize, PassOptions, _EthosUTarget):
    """Options of an `EthosUQuantizer`."""

    quantizer: Literal["ethos-u"]
    partitioners_own = ("target", *ArmQuantize.partitioners_own)


ENTRIES = (
    backend(
        name="ethos-u",
        backend_id="EthosUBackend",
        details="executorch.backends.arm.ethosu.backend:EthosUBackend",
        summary="Ethos-U55, U65, U85: NPUs of microcontrollers, quantized operators only",
        options=EthosUOptions,
        quantizer=EthosUQuantize,
        distributions=(*TOSA_TOOLS, "ethos-u-vela"),
        requirements=(extra("ethos-u", "ethosu", "tosa_serializer"),),
        constructors=constructors(
            "ethosu.compile_spec:EthosUCompileSpec",
            "ethosu.partitioner:EthosUPartitioner",
            "EthosUQuantizer(compile_spec)",
            tools=("system_config", "memory_mode", "extra_flags", "config_ini"),
        ),
        cannot_run=lambda: "it takes an Ethos-U NPU, and ExecuTorch has no model of one",
    ),
)
