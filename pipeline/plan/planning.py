"""The base class of `moments.Feature.planning`: the part of a feature in the plan of a package."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pipeline.program.sources import MethodSource
from pipeline.store.digest import Digest
from pipeline.store.errors import Problem

if TYPE_CHECKING:  # a no-op run parses no config, and so doesn't import pydantic
    from pipeline.config.compose import Document
    from pipeline.config.models import PackageConfig

Json = Mapping[str, Any]
Files = Mapping[str, Digest]  # of a package, by name


class Planning:
    """The part of one feature in one plan (`plan.plan.Plan`); overriding each method is optional.

    It is asked about the packages whose config the feature summarizes (`ConfigSummary.features`),
    in every run, so its methods parse no config.
    """

    def __init__(self, plan: Any) -> None:
        self.plan = plan

    def forget(self) -> None:
        """Forget everything that depends on exports."""

    def members(self, package: str) -> Iterable[str]:
        """Return the packages that are built whenever this one is requested."""
        return ()

    def deciding(self, package: str) -> Iterable[str]:
        """Return the packages whose compile actions the link of this one reads."""
        return ()

    def find_problems(
        self, package: str, config: PackageConfig, document: Document
    ) -> Iterator[Problem]:
        """Yield problems of a config that has no other mistakes."""
        yield from ()

    def find_model_problems(
        self,
        config: PackageConfig,
        document: Document,
        methods: Mapping[str, MethodSource],
    ) -> Iterator[Problem]:
        """Yield disagreements between an otherwise correct config and the methods of its model.

        Raises SourceError.
        """
        yield from ()

    def problem_facts(self, package: str) -> Any:
        """Return, as JSON, everything but the package's config that the problems depend on."""
        return None

    def add_to_link(self, package: str) -> Json | None:
        """Return fields for the key of the link, or None until a package's model is exported."""
        return {}

    def explain_link(self, package: str) -> Iterator[str]:
        """Yield reasons why a package is linked again although nothing in it changed."""
        yield from ()

    def find_devices(self, package: str) -> Iterable[str]:
        """Return the devices other than this machine that the package is validated on."""
        return ()

    def validate_facts(self, package: str, files: Files) -> Any:
        """Return, as JSON, the inputs of a validation's additions other than the config."""
        return None

    def held_to(self, package: str, files: Files, config: PackageConfig) -> Json:
        """Return fields for the key of a validation: requirements on a package with these files."""
        return {}

    def add_to_record(self, package: str, files: Files) -> Json:
        """Return fields for the record of the report on a package with these files."""
        return {}

    def find_places(self, package: str, config: PackageConfig) -> Iterable[str]:
        """Return the config paths of settings whose lines the report names."""
        return ()
