"""What features add to the plan of a package: the base class of `moments.Feature.planning`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pipeline.program.sources import MethodSource
from pipeline.store.digest import Digest
from pipeline.store.errors import Problem

if TYPE_CHECKING:  # a no-op run parses no config, and does without pydantic
    from pipeline.config.compose import Document
    from pipeline.config.models import PackageConfig

Json = Mapping[str, Any]
Files = Mapping[str, Digest]  # of a package, by name


class Planning:
    """One feature in one plan (`plan.plan.Plan`); each method may be left as it is here.

    It is asked for the packages of whose configs the feature keeps a summary
    (`ConfigSummary.features`), in every run, so its methods parse no config.
    """

    def __init__(self, plan: Any) -> None:
        self.plan = plan

    def forget(self) -> None:
        """Forget what depends on exports."""

    def members(self, package: str) -> Iterable[str]:
        """Return the packages that are built whenever this one is asked for."""
        return ()

    def deciding(self, package: str) -> Iterable[str]:
        """Return the packages whose compile actions its link reads."""
        return ()

    def find_problems(
        self, package: str, config: PackageConfig, document: Document
    ) -> Iterator[Problem]:
        """Yield what is wrong with a config that has no other mistakes."""
        yield from ()

    def find_model_problems(
        self,
        config: PackageConfig,
        document: Document,
        methods: Mapping[str, MethodSource],
    ) -> Iterator[Problem]:
        """Yield what is wrong between a config, which has no other mistakes, and its model's
        methods. Raises SourceError."""
        yield from ()

    def problem_facts(self, package: str) -> Any:
        """Return as JSON what the problems depend on, but for the package's config."""
        return None

    def add_to_link(self, package: str) -> Json | None:
        """Return fields of the key of the link, or None while a package's model is not exported."""
        return {}

    def explain_link(self, package: str) -> Iterator[str]:
        """Yield why a package is linked again of which nothing changed."""
        yield from ()

    def validate_facts(self, package: str, files: Files) -> Any:
        """Return as JSON what it adds to a validation depends on, but for the package's config."""
        return None

    def held_to(self, package: str, files: Files, config: PackageConfig) -> Json:
        """Return fields of the key of a validation, of what a package of these files is held to."""
        return {}

    def add_to_record(self, package: str, files: Files) -> Json:
        """Return fields of the record of the report on a package of these files."""
        return {}

    def find_places(self, package: str, config: PackageConfig) -> Iterable[str]:
        """Return the paths of settings of the config whose lines the report names."""
        return ()
