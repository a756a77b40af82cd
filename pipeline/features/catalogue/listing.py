"""`doit backends`: the catalogue as a table, or named entries in full."""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from pipeline.backends import (
    BACKENDS,
    PLUGIN_PROBLEMS,
    QUANTIZERS,
    Backend,
    Options,
    PartitionerSpec,
    Requirement,
)
from pipeline.backends.entry import Preprocessing
from pipeline.cli.columns import columns
from pipeline.features.catalogue.value_kinds import (
    definition_of,
    describe_values,
    format_yaml,
)
from pipeline.plan.plan import Plan
from pipeline.store.errors import PipelineError, did_you_mean
from pipeline.store.toolchain import version_of

_WIDTH = 100
_SUMMARY = 26  # the width that the table's other columns leave


# The output of `doit backends --json` (`moments.Command.record`).
CATALOGUE = {
    "format": Literal[1],
    "backends": [
        {
            "name": (str, "the name in configs"),
            "backend_id": (
                str,
                None,
                "the id of the backend in packages; null if it makes no delegates",
            ),
            "summary": (str, "what the backend is for, in one line"),
            "lowers": (bool, "whether this machine can lower to the backend"),
            "needs": ([str], "the requirements for lowering that this machine lacks"),
            "runs": (
                bool,
                None,
                "whether this machine can run the backend's delegates; null if unknown",
            ),
            "runs_how": (
                str,
                "what runs the delegates on this machine, or why nothing can",
            ),
            "joint": (
                bool,
                "whether the backend receives all methods of a package at once",
            ),
            "same_bytes": (
                bool,
                None,
                "whether every lowering of a program produces the same bytes; null if unknown",
            ),
            "distributions": (
                {str: str},
                "the distributions that lowering uses, with their versions",
            ),
            "plugin": (
                str,
                None,
                "the distribution that provides the backend; null if pte-pipeline does",
            ),
            "options": ({str: Any}, "the partitioner's options, as a JSON Schema"),
            "quantizer": (
                {str: Any},
                None,
                "the quantizer's options, as a JSON Schema; null without a quantizer",
            ),
        }
    ],
    "quantizers": (
        {str: {str: Any}},
        "quantizers without a backend, with the JSON Schemas of their options",
    ),
    "plugin_problems": ({str: str}, "the reasons why plugins can't be used, by plugin"),
}


def run(plan: Plan, words: Sequence[str], json: bool = False) -> Iterator[Any]:
    """List the catalogue, or describe the named backends.

    With `json`, yield the record that `CATALOGUE` describes. Raises PipelineError.
    """
    if json:
        yield _make_record(words)
        return
    if not words:
        yield from list_backends()
    for number, name in enumerate(words):
        yield from [""] if number else []
        yield from describe_backend(name)


def _make_record(words: Sequence[str]) -> dict[str, Any]:
    """Return the record of the named, or all, backends and quantizers. Raises PipelineError."""
    quantizers = _lone_quantizers()
    names = [*BACKENDS, *quantizers]
    for word in words:
        _refuse_unknown(word, names)
    chosen = list(words) or names
    return {
        "format": 1,
        "backends": [_describe_as_json(BACKENDS[n]) for n in chosen if n in BACKENDS],
        "quantizers": {
            name: QUANTIZERS[name].options.model_json_schema()
            for name in chosen
            if name in quantizers
        },
        "plugin_problems": dict(PLUGIN_PROBLEMS),
    }


def _describe_as_json(backend: Backend) -> dict[str, Any]:
    needs = _needs(backend.host.missing())
    refusal = backend.explain_not_run()
    how = _runs(backend)
    why = backend.preprocessing.unreproducible
    quantizer = None
    if backend.quantization is not None:
        quantizer = backend.quantization.options.model_json_schema()
    return {
        "name": backend.name,
        "backend_id": None if backend.lowering.kernels else backend.backend_id,
        "summary": backend.summary,
        "lowers": not needs,
        "needs": needs,
        "runs": False if refusal else bool(how) or None,
        "runs_how": refusal or how,
        "joint": backend.preprocessing.joint,
        "same_bytes": None if why.startswith("not known") else not why,
        "distributions": {n: version_of(n) for n in backend.host.distributions},
        "plugin": backend.plugin or None,
        "options": backend.options.model_json_schema() if backend.lowers else {},
        "quantizer": quantizer,
    }


def _refuse_unknown(name: str, names: Sequence[str]) -> None:
    if name not in names:
        raise PipelineError(f"no backend '{name}'; {did_you_mean(name, names)}")


def list_backends() -> Iterator[str]:
    """Yield the lines of a table of all backends."""
    rows = [("backend", "for", "lowers", "runs", "methods", "quantizer", "same bytes")]
    for backend in BACKENDS.values():
        summary, *more = textwrap.wrap(backend.summary, _SUMMARY) or [""]
        rows.append(
            (
                backend.name,
                summary,
                "no" if any(backend.host.missing()) else "yes",
                _runs(backend),
                "together" if backend.preprocessing.joint else "apart",
                "yes" if backend.quantization is not None else "",
                _same_bytes(backend)
                .removeprefix("not known")
                .partition(":")[0]
                .partition(",")[0],
            )
        )
        rows += [("", line, "", "", "", "", "") for line in more]
    yield from columns(rows, rule=True)
    for plugin, problem in PLUGIN_PROBLEMS.items():
        yield f"plugin {plugin} cannot be used: {problem}"
    yield ""
    yield "Lowers, runs: on this machine, or (what) would run it; what isn't run is compared by its"
    yield "declared inputs and outputs alone. A library: docs/guides/running-delegates.md."
    yield "Methods: whether a package's methods are lowered in one call or separately."
    quantizers = ", ".join(_lone_quantizers())
    yield f"Without a partitioner, portable kernels run a method. Quantizers alone: {quantizers}."
    yield "doit backends <name> shows the requirements and all options of a backend."


def describe_backend(name: str) -> Iterator[str]:
    """Describe a backend, or a quantizer without one. Raises PipelineError for an unknown name."""
    _refuse_unknown(name, [*BACKENDS, *_lone_quantizers()])
    if name not in BACKENDS:
        host = QUANTIZERS[name].host
        yield f"{name}: a quantizer without its own partitioner"
        needs = "; ".join(_needs(host.missing())) or "yes"
        yield from _facts(
            {"works here": needs, "versions": _versions(host.distributions)}
        )
    else:
        yield from _describe(BACKENDS[name])
    if name not in BACKENDS or BACKENDS[name].quantization is not None:
        yield ""
        yield f"quantize: {{quantizer: {name}, ...}}"
        yield from _options(QUANTIZERS[name].options)


def _lone_quantizers() -> list[str]:
    """Return the names of the quantizers that have no backend."""
    return [name for name in QUANTIZERS if name not in BACKENDS]


def _describe(backend: Backend) -> Iterator[str]:
    """Describe a backend and its partitioner."""
    yield f"{backend.name}: {backend.summary}"
    kernels = backend.lowering.kernels
    preprocessing = backend.preprocessing
    makes = preprocessing.function
    details = preprocessing.details
    methods = "each lowered separately"
    if preprocessing.joint:
        methods = "lowered together, in one call"
    if (
        preprocessing.joint
        and preprocessing.options_apart is not Preprocessing().options_apart
    ):
        methods += ", unless their options differ"
    facts = {
        "delegate": f"none; kernels {kernels}::" if kernels else backend.backend_id,
        "lowers here": "; ".join(_needs(backend.host.missing())) or "yes",
        "runs here": backend.explain_not_run() or _runs(backend) or "not known",
        "methods": methods,
        "preprocess": f"{makes}, not {details}"
        if makes and details
        else makes or details,
        "same bytes": _same_bytes(backend),
        "versions": _versions(backend.host.distributions),
        "from": backend.plugin,
        "upstream": backend.documented,
    }
    yield from _facts(facts)
    if not backend.lowers:
        yield ""
        yield "Nothing on this machine lowers to it, and it was not tried: it has no options."
        return
    yield ""
    yield f"partitioners: [{{{backend.name}: {{...}}}}]"
    yield from _options(backend.options)
    yield from _options(PartitionerSpec, ("modules",))


def _facts(facts: Mapping[str, str]) -> Iterator[str]:
    for title, fact in facts.items():
        if fact:
            yield from _wrapped(f"  {title + ':':<13}{fact}", 15)


def _versions(distributions: Collection[str]) -> str:
    return ", ".join(f"{name} {version_of(name)}" for name in distributions)


def _same_bytes(backend: Backend) -> str:
    why = backend.preprocessing.unreproducible
    if why:
        if why.startswith("not known"):
            return why
        return f"no: {why}"
    return "yes, every time"


def _runs(backend: Backend) -> str:
    """Return whether and where delegates run here; "" (unknown) if none can be lowered here."""
    if backend.explain_not_run():
        elsewhere = backend.execution.elsewhere
        if elsewhere:
            return f"no ({elsewhere})"
        return "no"
    if any(backend.host.missing()):
        return ""
    if backend.device:
        return f"on {backend.device}"
    if backend.execution.make_runtime is not None:
        return "in Python"
    return "yes"


def _needs(missing: Iterable[Requirement]) -> list[str]:
    """Return a line for each remedy, with the requirements that it meets."""
    remedy_to_needs: dict[str, list[str]] = {}
    for need in missing:
        remedy_to_needs.setdefault(need.remedy, []).append(need.what)
    return [
        f"needs {' and '.join(needs)}: {remedy}"
        for remedy, needs in remedy_to_needs.items()
    ]


def _options(model: type[Options], only: Collection[str] = ()) -> Iterator[str]:
    schema = model.model_json_schema()
    yield from _properties(schema, schema.get("$defs", {}), "  ", only)


def _properties(
    schema: Mapping[str, Any],
    definitions: Mapping[str, Any],
    indent: str,
    only: Collection[str] = (),
) -> Iterator[str]:
    """Yield each option with its kind, default and help, followed by the options inside it."""
    for name, part in schema.get("properties", {}).items():
        # The heading already names the quantizer.
        if name == "quantizer" or (only and name not in only):
            continue
        deeper = len(indent) + 4
        values = describe_values(part, definitions)
        default = _describe_default(part, name in schema.get("required", ()))
        yield from _wrapped(f"{indent}{name}: {values}{default}", deeper)
        alternatives = (part, *part.get("anyOf", ()))
        descriptions = [
            branch["description"] for branch in alternatives if "description" in branch
        ]
        if descriptions:
            yield from _wrapped(" " * deeper + descriptions[0], deeper)
        for branch in alternatives:
            if "$ref" in branch:
                inner = definition_of(branch, definitions)
                yield from _properties(inner, definitions, " " * deeper)


def _describe_default(part: Mapping[str, Any], required: bool) -> str:
    if required:
        return ", required"
    default = part.get("default")
    if default in (None, {}) or "const" in part:
        return ""
    return f" = {format_yaml(default)}"


def _wrapped(text: str, indent: int) -> list[str]:
    wrapper = textwrap.TextWrapper(_WIDTH, subsequent_indent=" " * indent)
    # A break would spoil words that people copy, such as paths and options.
    wrapper.break_long_words = wrapper.break_on_hyphens = False
    return wrapper.wrap(text)
