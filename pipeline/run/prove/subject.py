"""The package being measured, with its inputs, programs and manifest from the workspace."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter
from torch.export import ExportedProgram

from pipeline.plan.actions import Action
from pipeline.plan.kinds.validate import ValidateInputs
from pipeline.program.graphs import iter_nodes, map_places
from pipeline.program.input_files import read_examples
from pipeline.program.inputs import InputSet
from pipeline.program.random_inputs import Shapes
from pipeline.program.source_lines import describe_node
from pipeline.report.records import read_manifest
from pipeline.run.build.load import (
    Quantized,
    load_examples,
    load_method,
    load_quantized,
)
from pipeline.store.compiled import Instructions
from pipeline.store.errors import PipelineError
from pipeline.store.remedies import range_remedy
from pipeline.store.workspace import Workspace
from pipeline.validate.interface import NarrowedInput
from pipeline.validate.sequences import with_shared_state

Json = Mapping[str, Any]
_INSTRUCTIONS = TypeAdapter(Instructions)


@dataclass(frozen=True)
class LoweredMethod:
    """A method as it was lowered.

    Attributes:
        program: the quantized program if there is one.
        origins: maps places in a quantized program to places in the float program; else None.
    """

    program: ExportedProgram
    instructions: Instructions
    origins: Mapping[int, int] | None = None


class Subject:
    """A package being measured, with the programs and example inputs of its methods.

    `without_examples` are the methods whose only inputs are the arguments of their export.
    """

    def __init__(
        self,
        action: Action[ValidateInputs],
        workspace: Workspace,
        manifest: Json,
        programs: Mapping[str, ExportedProgram],
        examples: Mapping[str, list[InputSet]],
        without_examples: frozenset[str] = frozenset(),
    ) -> None:
        self.action = action
        self.workspace = workspace
        self.manifest = manifest
        self.programs = programs
        self.examples = examples
        self.without_examples = without_examples
        # Whether to make every call, even if the store has its outcome.
        self.anew = False

    @classmethod
    def load(cls, action: Action[ValidateInputs], workspace: Workspace) -> Subject:
        """Load the programs and inputs that were planned. Raises SourceError."""
        sources, store = action.inputs.sources, workspace.store
        programs = {
            name: load_method(source, store) for name, source in sources.items()
        }
        planned = action.key["measured"]["programs"]
        files = {
            name: list(zip(limits.examples, planned[name]["examples"], strict=True))
            for name, limits in action.inputs.config.validation.methods.items()
            if limits.examples
        }
        from_files = read_examples(workspace.root, files, programs)
        examples = {
            n: from_files.get(n) or load_examples(source, store)
            for n, source in sources.items()
        }
        manifest = read_manifest(workspace, str(action.package)) or {}
        without = {
            n
            for n, source in sources.items()
            if source.examples_of_export and not from_files.get(n)
        }
        return cls(action, workspace, manifest, programs, examples, frozenset(without))

    @property
    def key(self) -> Json:
        return self.action.key["measured"]  # type: ignore[no-any-return]

    @property
    def settings(self) -> Any:
        return self.action.inputs.config.validation

    @property
    def folder(self) -> Path:
        return self.workspace.package(str(self.action.package))

    @property
    def pte(self) -> Path:
        return next(
            self.folder / name for name in self.key["files"] if name.endswith(".pte")
        )

    @property
    def ptds(self) -> list[Path]:
        names = sorted(name for name in self.key["files"] if name.endswith(".ptd"))
        return [self.folder / name for name in names]

    @property
    def methods(self) -> Json:
        """The manifest's facts of each method."""
        return self.manifest.get("methods", {})

    @cached_property
    def asked(self) -> list[str] | None:
        """The methods to validate, including those that share state with them; None for all."""
        if "only" not in self.key:
            return None
        only = self.key["only"].split("+")
        return with_shared_state(
            only, self.programs, self.key["sequences"], self.settings.steps
        )

    def validates(self, method: str) -> bool:
        """Return whether a method has a source and is to be validated."""
        is_asked = self.asked is None or method in self.asked
        return is_asked and method in self.programs

    def not_run(self) -> dict[str, str]:
        """Return, by method, why this machine can't run its delegates or its backends' kernels.

        Methods that it can run are left out.
        """
        reasons, lacking_by_method = self.key["not_run"], {}
        for name, facts in self.methods.items():
            used = [
                *facts["delegation"]["partitions"],
                *facts["delegation"].get("kernels", {}),
            ]
            if lacking := [
                f"{backend}: {reasons[backend]}"
                for backend in used
                if backend in reasons
            ]:
                lacking_by_method[name] = "; ".join(lacking)
        return lacking_by_method

    @property
    def listed_shapes(self) -> dict[str, Shapes]:
        """The allowed input shapes of methods whose partitioner options enumerate them."""
        shapes: dict[str, Shapes] = {}
        for name, facts in self.methods.items():
            for partitioner in facts["lowering"].get("partitioners", ()):
                listed = partitioner.get("options", {}).get("enumerated_shapes")
                if isinstance(listed, Mapping):
                    shapes[name] = listed
        return shapes

    @property
    def narrowed(self) -> dict[str, list[NarrowedInput]]:
        """By method, the sizes whose range was narrowed by lowering, with a remedy for each."""
        narrowed: dict[str, list[NarrowedInput]] = {}
        for name, facts in self.methods.items():
            keeps = facts["lowering"].get("edge", {}).get("keep_ranges", False)
            narrowed[name] = []
            for size in facts.get("narrowed", ()):
                remedy = range_remedy(size["operator"], size["lowered"], keeps)
                narrowed[name].append((size, remedy))
        return narrowed

    @cached_property
    def quantized(self) -> dict[str, Quantized]:
        """The quantized programs of the methods to validate.

        A method that this machine can't run is included: its quantization can still be judged.
        Raises MissingBlobError, since the verdict would be different without one.
        """
        requested, store = self.asked, self.workspace.store
        return {
            name: load_quantized(facts["quantized"], name, store)
            for name, facts in self.methods.items()
            if facts.get("quantized") and (requested is None or name in requested)
        }

    def describe_instruction(self, method: str, instruction: int) -> str:
        """Return the model's source line of an instruction of a method, or "" if unknown."""
        try:
            lowered = self.load_lowered(method)
        except PipelineError:  # the manifest or the quantized program is missing
            return ""
        place = lowered.instructions.node_places.get(instruction)
        if place is not None and lowered.origins is not None:
            place = lowered.origins.get(place)
        if place is None:
            return ""
        return describe_node(
            list(iter_nodes(self.programs[method]))[place], self.workspace.root
        )

    def find_facts(self, method: str) -> Json:
        """Return the manifest's facts of a lowered method. Raises PipelineError if it has none."""
        facts: Json = self.methods.get(method, {})
        if "instructions" not in facts:
            raise PipelineError(
                f"{method}: the manifest does not say how it was lowered"
            )
        return facts

    def load_lowered(self, method: str) -> LoweredMethod:
        """Load a method as it was lowered. Raises PipelineError."""
        facts = self.find_facts(method)
        instructions = _INSTRUCTIONS.validate_python(facts["instructions"])
        if facts["quantized"] is None:
            return LoweredMethod(self.programs[method], instructions)
        quantized = self.quantized.get(method) or load_quantized(
            facts["quantized"], method, self.workspace.store
        )
        program, origins, *_ = quantized
        return LoweredMethod(program, instructions, map_places(program, origins))


def lines_of_handles(
    methods: Json, programs: Mapping[str, ExportedProgram], root: Path
) -> dict[str, dict[int, str]]:
    """Return the model's source line of each instruction in delegates, by method and debug handle.

    Lines are those of the current export; `methods` are the manifest's facts of each method.
    """
    lines: dict[str, dict[int, str]] = {}
    for name, facts in methods.items():
        places = facts.get("debug_handles", [])
        if places and name in programs:
            nodes = list(iter_nodes(programs[name]))
            lines[name] = {
                handle: describe_node(nodes[place], root) for handle, place in places
            }
    return lines
