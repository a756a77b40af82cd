"""The spaces of a plan: mistakes in a space are mistakes of the config."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pipeline.plan.planning import Planning
from pipeline.store.errors import Problem

if TYPE_CHECKING:  # a no-op run parses no config and doesn't import pydantic
    from pipeline.config.compose import Document
    from pipeline.config.models import PackageConfig


class TunePlanning(Planning):
    """Checks each alternative as if it were in its place in the config."""

    def find_problems(
        self, package: str, config: PackageConfig, document: Document
    ) -> Iterator[Problem]:
        from pipeline.features.tuning.space import (
            find_figure_problems,
            find_space_problems,
        )

        devices = list(self.plan.find_devices(package))
        metrics = list(getattr(config.validation, "metrics", ()))
        yield from find_figure_problems(document, devices, metrics)
        workspace = self.plan.workspace
        methods = list(config.methods)
        yield from find_space_problems(workspace, package, document, methods)
