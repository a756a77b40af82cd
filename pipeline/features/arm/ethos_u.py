"""Ethos-U, Arm's NPUs for microcontrollers, compiled by vela: executorch/backends/arm/ethosu."""

from __future__ import annotations

import configparser
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, ClassVar, Literal

from pydantic import ValidationInfo, WithJsonSchema, field_validator
from pydantic_core import PydanticCustomError

from pipeline.backends.entry import Execution
from pipeline.backends.host import TOSA, Host, extra
from pipeline.backends.options import NAMES, Distinct, OneOf, Options, rule
from pipeline.backends.workspace_files import WorkspaceFiles
from pipeline.features.arm.backend import FILES, arm_backend
from pipeline.features.arm.options import (
    PASS_OPTIONS,
    WORD,
    ArmQuantize,
    LeakyReLU,
    NegativeInfinity,
    OneFlag,
    PositiveInfinity,
    Softmax,
)
from pipeline.features.arm.vela import kept_estimates
from pipeline.program.patching import wrapped
from pipeline.store.errors import did_you_mean

OWN_INI = "Arm/vela.ini"  # the file that vela ships
SYSTEMS, MEMORIES = NAMES["ethos_u_systems"], NAMES["ethos_u_memories"]
# The system configuration and memory mode that executorch uses by default for each NPU.
ETHOS_U_DEFAULTS = {
    "u55": ("Ethos_U55_High_End_Embedded", "Shared_Sram"),
    "u65": ("Ethos_U65_High_End", "Dedicated_Sram_384KB"),
    "u85": ("Ethos_U85_SYS_DRAM_Mid", "Sram_Only"),
}
VelaFlag = Annotated[
    str,
    OneFlag(
        "arena-cache-size cop-format cpu-tensor-alignment debug-force-legacy-core "
        "debug-force-regor disable-buffering disable-cascading disable-chaining disable-fwd "
        "disable-ifm-reuse experimental-softmax-int16-neg-exp-range force-symmetric-int-weights "
        "hillclimb-max-iterations ignore-ops max-block-dependency optimise recursion-limit "
        "separate-io-regions show-cpu-operations show-subgraph-io-summary tensor-allocator timing "
        "verbose-all verbose-allocation verbose-config verbose-cycle-estimate verbose-graph "
        "verbose-high-level-command-stream verbose-operators verbose-packing verbose-performance "
        "verbose-progress verbose-quantization verbose-register-command-stream verbose-schedule "
        "verbose-tensor-format verbose-tensor-purpose verbose-weights"
    ),
]


class EthosUTarget(Options):
    """An NPU, and the pass options of its `EthosUCompileSpec`."""

    spec: ClassVar[str] = "ethosu.compile_spec:EthosUCompileSpec"

    target: Annotated[str, OneOf("ethos_u_targets")]
    """The NPU and its number of multiply-accumulates per cycle, such as ethos-u55-128."""
    softmax: Softmax = None
    leaky_relu: LeakyReLU = "decompose"
    quantize_neg_inf: NegativeInfinity = -256.0
    quantize_pos_inf: PositiveInfinity = 255.0


_SECTION = rf"^{WORD}$"


def _suggested(names: Sequence[str]) -> WithJsonSchema:
    return WithJsonSchema(
        {"anyOf": [{"enum": list(names)}, {"type": "string", "pattern": _SECTION}]}
    )


def _undefined_sections(
    options: EthosUOptions, path: Path
) -> Iterator[tuple[str, str, str]]:
    """Yield the sections that the options name but the user's file doesn't define.

    vela only prints that they are missing; ExecuTorch then fails because it finds no output.
    """
    ini = configparser.ConfigParser()
    try:
        ini.read_string(path.read_text(encoding="utf-8"))
    except (configparser.Error, UnicodeDecodeError) as error:
        yield "config_ini", f"is not an .ini file: {' '.join(str(error).split())}", ""
        return
    system, memory = ETHOS_U_DEFAULTS[options.target.split("-")[1]]
    sections = {  # by option, with their prefixes (ethosu/vela/architecture_features.py)
        "system_config": ("System_Config.", options.system_config or system),
        "memory_mode": ("Memory_Mode.", options.memory_mode or memory),
    }
    for option, (prefix, name) in sections.items():
        defined = [
            s.removeprefix(prefix) for s in ini.sections() if s.startswith(prefix)
        ]
        if name not in defined:
            mistake = (
                f"is '{name}', but {options.config_ini} has no section [{prefix}{name}]"
            )
            yield option, mistake, did_you_mean(name, defined)


class EthosUOptions(EthosUTarget):
    """Options of `EthosUPartitioner`, which come from its `EthosUCompileSpec`."""

    config_ini: Annotated[
        str, WorkspaceFiles((".ini",), brought=(OWN_INI,), misfits=_undefined_sections)
    ] = OWN_INI
    """The file that defines systems and memory modes for vela, Arm's compiler for Ethos-U: vela's
    own Arm/vela.ini, or the path of a file in the workspace."""
    system_config: Annotated[str | None, _suggested(SYSTEMS)] = None
    """The system in config_ini that vela compiles for; by default Ethos_U55_High_End_Embedded,
    Ethos_U65_High_End or Ethos_U85_SYS_DRAM_Mid, depending on the NPU."""
    memory_mode: Annotated[str | None, _suggested(MEMORIES)] = None
    """The memory mode in config_ini that vela compiles for; by default Shared_Sram for U55,
    Dedicated_Sram_384KB for U65 and Sram_Only for U85."""
    extra_flags: Distinct[VelaFlag] | None = None
    """Additional flags for vela, such as --optimise=Size or --arena-cache-size=400000."""

    @field_validator("system_config", "memory_mode")
    @classmethod
    def _is_defined(cls, value: str | None, info: ValidationInfo) -> str | None:
        """Check a name against vela's default file; a user's file may define any one word."""
        if value is not None and not re.fullmatch(_SECTION, value):
            raise rule("must be a name without spaces")
        if value is None or info.data.get("config_ini") != OWN_INI:
            return value
        is_system = info.field_name == "system_config"
        names = SYSTEMS if is_system else MEMORIES
        if value not in names:
            raise PydanticCustomError("unknown", "unknown", {"known": names})
        family = str(info.data.get("target", "")).rpartition("-")[0].replace("-", "_")
        if is_system and not value.lower().startswith(family):
            raise rule("must be a system with the target's NPU")
        return value


class EthosUQuantize(ArmQuantize, EthosUTarget):
    """Options of an `EthosUQuantizer`."""

    quantizer: Literal["ethos-u"]
    partitioners_own = ("target", *PASS_OPTIONS)


@contextmanager
def _with_vela() -> Iterator[None]:
    """Let vela read users' files by their names in compile specs, and record its estimates."""
    from executorch.backends.arm.ethosu import backend

    def compile_with_inis(
        original: Callable[..., bytes], tosa: bytes, flags: list[str], **more: Any
    ) -> bytes:
        with TemporaryDirectory() as folder:
            for name, content in FILES.items():
                path = Path(folder, name)
                path.write_bytes(content)
                flags = [
                    f"--config={path}" if f == f"--config={name}" else f for f in flags
                ]
            return original(tosa, flags, **more)

    with kept_estimates(), wrapped(backend, "vela_compile", compile_with_inis):
        yield


_RECIPE = "docs/guides/running-delegates.md says how"

ENTRIES = (
    arm_backend(
        "ethos-u",
        "EthosU",
        summary="Ethos-U55, U65, U85: NPUs for microcontrollers; quantized operators only",
        options=EthosUOptions,
        quantize=EthosUQuantize,
        around=_with_vela,
        host=Host(
            requirements=(extra("ethos-u", "ethosu", "tosa_serializer"),),
            distributions=(*TOSA, "ethos-u-vela"),
        ),
        execution=Execution(
            cannot_run=lambda: (
                f"it needs an Ethos-U NPU, or Arm's FVP of one; {_RECIPE}"
            ),
            elsewhere="NPU, FVP",
        ),
    ),
)
