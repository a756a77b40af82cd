"""Applies transformers' patches of torch and ExecuTorch while lowering a program that it exported.

transformers' exporters have these patches in force, too: without them, some programs have other
bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager

from pipeline.compile.preprocess.cache import keyed_preprocess
from pipeline.compile.preprocess.cached_backend import more_key
from pipeline.features.transformers.cache_trees import use_cache_trees
from pipeline.features.transformers.recorded import PATCHES, read_record
from pipeline.run.build.listening import CompileListener, UnloweredMethod
from pipeline.store.errors import SourceError
from pipeline.store.toolchain import version_of


class PatchedLowering(CompileListener):
    """Applies the patches that the programs of a unit name. It reports no facts."""

    def __init__(self) -> None:
        self._patches: list[str] = []
        self._version = ""

    def add_sources(self, methods: Mapping[str, UnloweredMethod]) -> None:
        """Read the names of the patches.

        Raises SourceError if the installed transformers differs from the release that exported a
        program.
        """
        names: set[str] = set()
        for name, method in methods.items():
            if record := read_record(name, method.program.graph_module.meta):
                self._version = record["version"]
                _check_version(name, self._version)
                names.update(record["patches"])
                use_cache_trees(method.program)
        self._patches = [name for name in PATCHES if name in names]

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Apply the patches within the context."""
        if not self._patches:
            yield
            return
        # The import registers the patches.
        from transformers.exporters import exporter_executorch  # noqa: F401
        from transformers.exporters.utils import apply_patches

        patched = {"version": self._version, "patches": self._patches}
        with ExitStack() as stack:
            # A backend may produce another result for a partition under patches.
            stack.enter_context(
                keyed_preprocess({**more_key.get(), "transformers": patched})
            )
            stack.enter_context(_fresh_patterns())
            for name in self._patches:
                stack.enter_context(apply_patches(name))
            yield


def _check_version(method: str, exported: str) -> None:
    installed = version_of("transformers")  # includes a digest of edited files
    if installed != exported:
        raise SourceError(
            f"{method}: lowering it needs the patches of transformers {exported}, which exported "
            f"it (found: {installed}); `pip install transformers=={exported}`, or export it again"
        )


@contextmanager
def _fresh_patterns() -> Iterator[None]:
    """Make XNNPACK export its pattern graphs again, both within the context and after it.

    It keeps these graphs for the life of a process, so earlier work would show in the bytes. This
    can go when `executorch.backends.xnnpack.partition.graphs` keeps none.
    """
    from executorch.backends.xnnpack.partition.graphs import bilinear_2d, sdpa

    caches = (sdpa.get_graphs, bilinear_2d._get_bilinear_2d_graphs)
    try:
        for cache in caches:
            cache.cache_clear()
        yield
    finally:
        for cache in caches:
            cache.cache_clear()
