"""Keeps transformers' patches of torch and ExecuTorch in force while a program that its exporters
made is lowered, as they are there: some programs have other bytes without them."""

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
    """Applies the patches that the programs of a unit name. It learns nothing."""

    def __init__(self) -> None:
        self._patches: list[str] = []
        self._version = ""

    def add_sources(self, methods: Mapping[str, UnloweredMethod]) -> None:
        """Take the names of patches. Raises SourceError where this environment has another release
        of transformers than the export had."""
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
        # Importing it registers them.
        from transformers.exporters import exporter_executorch  # noqa: F401
        from transformers.exporters.utils import apply_patches

        patched = {"version": self._version, "patches": self._patches}
        with ExitStack() as stack:
            # A backend may make something else of a partition under patches.
            stack.enter_context(
                keyed_preprocess({**more_key.get(), "transformers": patched})
            )
            stack.enter_context(_fresh_patterns())
            for name in self._patches:
                stack.enter_context(apply_patches(name))
            yield


def _check_version(method: str, exported: str) -> None:
    installed = version_of("transformers")  # with a digest of files that were edited
    if installed != exported:
        raise SourceError(
            f"{method}: lowering it needs the patches of transformers {exported}, which exported "
            f"it; but {installed} is installed: `pip install transformers=={exported}`, or "
            "export it "
            "again"
        )


@contextmanager
def _fresh_patterns() -> Iterator[None]:
    """Let XNNPACK export the graphs that it looks for within the context, and again after it: it
    keeps them for the life of a process, whose earlier work would show in the bytes. This can go
    when `executorch.backends.xnnpack.partition.graphs` keeps none."""
    from executorch.backends.xnnpack.partition.graphs import bilinear_2d, sdpa

    caches = (sdpa.get_graphs, bilinear_2d._get_bilinear_2d_graphs)
    try:
        for cache in caches:
            cache.cache_clear()
        yield
    finally:
        for cache in caches:
            cache.cache_clear()
