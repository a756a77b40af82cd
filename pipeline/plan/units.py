"""The units of packages: which methods are quantized, and which are compiled together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pipeline.plan.actions import Action
from pipeline.plan.kinds.parts import hash_option_files
from pipeline.plan.models import once
from pipeline.plan.problems import CheckedFiles
from pipeline.program.sources import MethodSource
from pipeline.store.digest import Digest

if TYPE_CHECKING:  # a no-op run makes no action
    from pipeline.plan.kinds.compile import CompileInputs


class Units(CheckedFiles):
    """The quantize and compile actions of packages."""

    @once
    def quantizes(self, package: str) -> dict[str, Action] | None:
        """Return the quantize actions by method, or None until the model is exported."""
        from pipeline.plan.kinds.table import KINDS

        methods = self.methods(package)
        config = self.config(package)
        if methods is None:
            return None
        actions = {}
        for name in self.quantized(package):
            make_action = KINDS["quantize"].plan
            assert make_action is not None
            actions[name] = make_action(
                config=config,
                method=name,
                sources={name: methods[name]},
                files=hash_option_files(config.methods[name], self.workspace),
                libraries=self.inputs.libraries(package),
                written=self.written(package),
            )
        return actions

    @once
    def compiles(self, package: str) -> list[Action[CompileInputs]] | None:
        """Return the compile actions, or None until the model is exported."""
        from pipeline.plan.kinds.compile import compile_action

        methods = self.methods(package)
        quantizes = self.quantizes(package)
        if methods is None or quantizes is None:
            return None
        digests = {name: action.digest for name, action in quantizes.items()}
        return [
            compile_action(self._compile_inputs(package, unit, methods, digests))
            for unit in self.units(package)
        ]

    def _compile_inputs(
        self,
        package: str,
        unit: tuple[str, ...],
        methods: Mapping[str, MethodSource],
        quantizes: Mapping[str, Digest],
    ) -> CompileInputs:
        from pipeline.plan.kinds.compile import CompileInputs

        config = self.config(package)
        passes = self.inputs.passes(package)
        references = dict.fromkeys(config.pass_references(unit))
        sources = {name: source for name, source in methods.items() if name in unit}
        files = {}
        unit_quantizes = {}
        for name in unit:
            files[name] = hash_option_files(config.methods[name], self.workspace)
            if name in quantizes:
                unit_quantizes[name] = quantizes[name]
        return CompileInputs(
            config=config,
            unit=unit,
            sources=sources,
            quantizes=unit_quantizes,
            passes={name: passes[name] for name in references},
            files=files,
            libraries=self.inputs.libraries(package),
            written=self.written(package),
        )

    @once
    def compile_digests(self, package: str) -> dict[str, Digest] | None:
        """Return the digests of the compile actions by unit.

        Returns None if the package has problems or waits for an export.
        """
        if self.waits(package):
            return None

        def compute() -> dict[str, Digest] | None:
            if not self.is_sound(package):
                return None
            actions = self.compiles(package) or ()
            return {str(action.method): action.digest for action in actions} or None

        digests: dict[str, Digest] | None = self.derive_checked(
            package, "compiles", [], compute
        )
        return digests
