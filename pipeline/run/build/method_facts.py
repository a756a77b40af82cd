"""The facts of compiled methods that the core records.

They say what was delegated, and how each method is called, emitted and stored
(`store.compiled.COMPILED_METHOD`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from typing import Any

from executorch.exir import ExecutorchProgramManager
from torch.export import ExportedProgram

from pipeline.compile.control_flow import count_float_operators
from pipeline.compile.inspect.constants import describe_constants
from pipeline.compile.inspect.delegation import describe_delegation, find_debug_handles
from pipeline.compile.inspect.uptake import measure_kernels
from pipeline.compile.module_filter import FilteredPartitioner
from pipeline.config.models import MethodConfig
from pipeline.moments import call_all
from pipeline.program.recorded_signature import record_signature
from pipeline.program.signature import find_changed_inputs
from pipeline.run.build.called_operators import describe_libraries
from pipeline.run.build.listening import CompileListener, Json, UnloweredMethod
from pipeline.store.compiled import Instructions


class MethodFacts(CompileListener):
    """Collects the facts of a unit's methods.

    Args:
        libraries: the inputs, as in the key, of each operator library. A pass's module counts as
            one.

    Attributes:
        partitioners: by method; set once they are made.
    """

    def __init__(
        self, configs: Mapping[str, MethodConfig], libraries: Mapping[str, Json]
    ) -> None:
        self._configs = configs
        self._libraries = libraries
        self._signatures: dict[str, dict[str, Any]] = {}
        self._left_float: dict[str, int] = {}
        self.partitioners: Mapping[str, Sequence[FilteredPartitioner]] = {}

    def add_sources(self, methods: Mapping[str, UnloweredMethod]) -> None:
        self._methods = methods
        for name, method in methods.items():
            is_quantized = method.quantization is not None
            self._signatures[name] = record_signature(method.program, is_quantized)
            self._left_float[name] = (
                count_float_operators(method.program) if is_quantized else 0
            )

    def add_lowered(self, programs: Mapping[str, ExportedProgram]) -> None:
        self._facts = {
            name: self._describe(name, program) for name, program in programs.items()
        }

    @contextmanager
    def emitting(self) -> Iterator[None]:
        with ExitStack() as stack:
            self._emissions = []
            for context in call_all("record_emission"):
                self._emissions.append(stack.enter_context(context))
            yield

    def find_facts(
        self, emitted: ExecutorchProgramManager
    ) -> Mapping[str, dict[str, Any]]:
        plans = {plan.name: plan for plan in emitted.executorch_program.execution_plan}
        for name, method in self._methods.items():
            instructions = Instructions()
            for emission in self._emissions:
                instructions = emission.instructions(name, method.program)
            facts = self._facts[name]
            facts["instructions"] = asdict(instructions)
            for warnings in call_all(
                "warn_of_emitted",
                plans[name],
                instructions,
                method.program,
                method.origins,
            ):
                facts["warnings"] = [*facts["warnings"], *warnings]
            facts["operators"] = describe_libraries(plans[name], self._libraries)
        return self._facts

    def _describe(self, name: str, lowered: ExportedProgram) -> dict[str, Any]:
        """Return the facts of a lowered method that are known before it is emitted."""
        method, config = self._methods[name], self._configs[name]
        partitioners = self.partitioners[name]
        backends = [spec.backend for spec in config.partitioners]
        in_python = {b.backend_id for b in backends if b.execution.make_runtime}
        changes = list(find_changed_inputs(lowered))
        warnings: list[dict[str, Any]] = []
        for further in call_all("warn_of_program", method.program, method.origins):
            warnings += further
        for partitioner in partitioners:
            warnings += map(_warn_of_method, partitioner.warnings)
        delegation = describe_delegation(lowered, config.partitioners, method.places)
        delegation["partitioners"] = _describe_uptake(config, partitioners, delegation)
        if facts := method.quantization:
            sentences = call_all("warn_of_quantization", facts, delegation)
            warnings += map(_warn_of_method, filter(None, sentences))
        return {
            "delegation": delegation,
            "signature": {**self._signatures[name], "changes": changes},
            "debug_handles": find_debug_handles(lowered, method.places, in_python),
            "left_float": self._left_float[name],
            "quantization": method.quantization,
            "constants": describe_constants(method.program, lowered),
            "listed": [
                listed for partitioner in partitioners for listed in partitioner.listed
            ],
            "warnings": warnings,
        }


def _warn_of_method(warning: str) -> dict[str, Any]:
    return {"what": warning, "operator": "", "module": "", "place": None}


def _describe_uptake(
    config: MethodConfig,
    partitioners: Sequence[FilteredPartitioner],
    delegation: dict[str, Any],
) -> list[dict[str, Any]]:
    """Return what each partitioner of a method was offered and took, in the config's order."""
    measured = iter(partitioners)
    uptakes = []
    for spec in config.partitioners:
        if spec.backend.lowering.make_passes is not None:
            uptakes.append(measure_kernels(spec, delegation))
        elif (uptake := next(measured).uptake) is not None:
            uptakes.append(uptake)
    return uptakes
