"""Patterns of `emit` that fit nothing: names and modules of weights, and names of buffers; and the
names in options of partitioners that nothing has.

They are held against the sources' programs when a package is planned. Quantizing and passes make
constants of other names, so where there are some, linking knows the names and tells it
(`run/build/link.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pipeline.config.patterns import fits_buffer, fits_name, fits_weight
from pipeline.program.module_paths import Outline
from pipeline.program.sources import MethodSource
from pipeline.store.errors import Problem, did_you_mean, join, listed

if TYPE_CHECKING:  # a no-op run parses no config, and does without pydantic
    from pipeline.config.compose import Document
    from pipeline.config.models import PackageConfig

_MOST = 10  # names in a hint
_FITS = {"external_weights": fits_weight, "external_files": fits_name}
_TAKEN = "delegates took its constants; `external_weights` moves those too"


def check_patterns(
    config: PackageConfig,
    document: Document,
    methods: Mapping[str, MethodSource],
    outline: Callable[[MethodSource], Outline | None],
) -> Iterator[Problem]:
    """Find patterns that fit nothing in any method, if it is known what the methods have."""
    emit = config.emit.resolved()
    if not any(emit[option] for option in (*_FITS, "initialized_buffers")):
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
            mistake = (
                f"'{part}' is no part of a buffer's name, in which '_' stands for '.'"
            )
            where = f"emit.initialized_buffers[{number}]"
            remedy = did_you_mean(part.replace(".", "_"), spelled, _MOST)
            yield document.problem(where, mistake, remedy)


def find_unfitting(
    emit: Mapping[str, Any], names: Collection[str], modules: Collection[str]
) -> Iterator[tuple[str, str, str]]:
    """Yield the patterns of weights that fit none: each with its path in a config, what is wrong
    and what would be right.

    Args:
        emit: as a config resolves it.
        names: the qualified names of the package's constants.
        modules: those of the modules around them.
    """
    for option, fits in _FITS.items():
        for file, patterns in emit[option].items():
            for number, pattern in enumerate(patterns):
                if pattern == "*" or any(fits(name, pattern) for name in names):
                    continue
                mistake = f"'{pattern}' fits no constant of the package"
                hint = ""
                if pattern in modules:
                    hint = f"did you mean '{pattern}.*'?"
                if pattern in modules and option == "external_weights":
                    hint = "it is a module without any"
                where = f"{join(f'emit.{option}', file)}[{number}]"
                word = pattern.removesuffix(".*")
                yield (
                    where,
                    mistake,
                    hint or did_you_mean(word, sorted({*modules} - {""}), _MOST),
                )


def find_unwritten(
    emit: Mapping[str, Any],
    files: Collection[str],
    tensors: Collection[Mapping[str, Any]] | None = None,
) -> Iterator[str]:
    """Yield a sentence for each file for constants that a package lacks, with the reason.

    Args:
        emit: as a config resolves it, or an older manifest has it.
        files: the names of the package's files.
        tensors: those of the package (`TensorRecord`); None where they are not known.
    """
    for option in _FITS:
        for file, patterns in dict(emit.get(option, {})).items():
            if f"{file}.ptd" not in files:
                reason = _explain_unwritten(option, patterns, tensors)
                yield f"emit.{option}: there is no {file}.ptd{reason and f': {reason}'}"


def _explain_unwritten(
    option: str, patterns: Sequence[str], tensors: Collection[Mapping[str, Any]] | None
) -> str:
    """Return why nothing went to the file of some patterns; "" where that is not known."""
    if tensors is None:
        return ""
    constants = [tensor for tensor in tensors if tensor["where"] != "mutable"]
    if not constants:
        return "the package has no constants; leave it out"
    fits = _FITS[option]
    fitting = [
        t for t in constants if any(fits(t["name"], pattern) for pattern in patterns)
    ]
    if not fitting:
        return "its patterns fit no constant that the package still has"
    if all(tensor["where"] == "named_data" and _is_apart(tensor) for tensor in fitting):
        return "other files take all that its patterns fit"
    if any(tensor["where"] == "delegate" for tensor in fitting):
        reason = "its weights are in payloads of backends that take no tags"
        if option == "external_weights":
            return reason
        return _TAKEN
    if option == "external_files" and any(t["where"] == "named_data" for t in fitting):
        return _TAKEN
    return "what its patterns fit are literals of the model's code, which stay in the program"


def _is_apart(tensor: Mapping[str, Any]) -> bool:
    return str(tensor["file"]).endswith(".ptd")


def find_unknown_names(methods: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield a sentence for each option of partitioners that names what no method of a package has
    whose config lists it.

    Args:
        methods: as a manifest has them; `listed` of each is what `compile.name_lists` found.
    """
    listings = [
        listing
        for _, facts in sorted(methods.items())
        for listing in facts.get("listed", ())
    ]
    fitting = {
        (listing["option"], listing["name"]) for listing in listings if listing["found"]
    }
    unknown: dict[str, dict[str, str]] = {}
    for listing in listings:
        if (listing["option"], listing["name"]) not in fitting:
            unknown.setdefault(listing["option"], {}).setdefault(
                listing["name"],
                listing["hint"],
            )
    for option, hints in unknown.items():
        names = listed(repr(name) for name in hints)
        hint = next(iter(hints.values()))
        yield f"{option} names {names}, which the package has not; {hint}"
