"""Patterns of `emit` that match nothing: names and modules of weights, and names of buffers.

Patterns are checked against the sources' programs when a package is planned. Quantizing and passes
make constants with other names; for a package with either, linking knows the names and reports such
patterns (`run/build/link.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pipeline.config.patterns import WEIGHT_PATTERNS, fits_buffer
from pipeline.program.module_paths import Outline
from pipeline.program.sources import MethodSource
from pipeline.store.errors import Problem, did_you_mean, join

if TYPE_CHECKING:  # a no-op run parses no config, and so doesn't import pydantic
    from pipeline.config.compose import Document
    from pipeline.config.models import PackageConfig

_MOST = 10  # names in a hint


def check_patterns(
    config: PackageConfig,
    document: Document,
    methods: Mapping[str, MethodSource],
    outline: Callable[[MethodSource], Outline | None],
) -> Iterator[Problem]:
    """Find patterns that match nothing in any method, if it is known what the methods contain."""
    emit = config.emit.resolved()
    if not any(emit[option] for option in (*WEIGHT_PATTERNS, "initialized_buffers")):
        return
    outlines = []
    for name in config.methods:
        outlined = outline(methods[name])
        if outlined is None:
            return
        outlines.append(outlined)
    tensors = {
        name: kind for outlined in outlines for name, kind in outlined.tensors.items()
    }
    if not config.quantized and not any(config.pass_references(config.methods)):
        modules = {name for outlined in outlines for name in outlined.modules}
        for path, mistake, remedy in find_unfitting(emit, tensors, modules):
            yield document.problem(path, mistake, remedy)
    buffers = [name for name, kind in tensors.items() if kind == "buffer"]
    for number, part in enumerate(emit["initialized_buffers"]):
        if not any(fits_buffer(name, part) for name in buffers):
            spelled = [name.replace(".", "_") for name in buffers]
            mistake = f"'{part}' is not part of a buffer's name, where '_' replaces '.'"
            where = f"emit.initialized_buffers[{number}]"
            remedy = did_you_mean(part.replace(".", "_"), spelled, _MOST)
            yield document.problem(where, mistake, remedy)


def find_unfitting(
    emit: Mapping[str, Any], names: Collection[str], modules: Collection[str]
) -> Iterator[tuple[str, str, str]]:
    """Yield each weight pattern that matches nothing: its config path, its mistake and a remedy.

    Args:
        emit: the resolved `emit` settings of a config.
        names: the qualified names of the package's constants.
        modules: the qualified names of the modules that contain constants.
    """
    for option, fits in WEIGHT_PATTERNS.items():
        for file, patterns in emit[option].items():
            for number, pattern in enumerate(patterns):
                if pattern == "*" or any(fits(name, pattern) for name in names):
                    continue
                mistake = f"'{pattern}' matches no constant of the package"
                hint = ""
                if pattern in modules:
                    hint = f"did you mean '{pattern}.*'?"
                if pattern in modules and option == "external_weights":
                    hint = "it is a module without constants"
                where = f"{join(f'emit.{option}', file)}[{number}]"
                word = pattern.removesuffix(".*")
                yield (
                    where,
                    mistake,
                    hint or did_you_mean(word, sorted({*modules} - {""}), _MOST),
                )
