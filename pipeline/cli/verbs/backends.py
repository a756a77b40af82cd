"""`doit backends`: the catalogue as a table, or one entry in full."""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from pipeline.backends import (
    BACKENDS,
    PLUGIN_PROBLEMS,
    QUANTIZERS,
    Backend,
    Options,
    PartitionerSpec,
    Requirement,
)
from pipeline.cli.columns import columns
from pipeline.plan.plan import Plan
from pipeline.store.errors import PipelineError, did_you_mean
from pipeline.store.toolchain import version_of

_WIDTH = 100
_SUMMARY = 38  # what the other columns of the table leave of it


def run(plan: Plan, words: Sequence[str]) -> Iterator[str]:
    """List the catalogue, or describe the named backends. Raises PipelineError."""
    if not words:
        yield from list_backends()
    for number, name in enumerate(words):
        yield from [""] if number else []
        yield from describe_backend(name)


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
                _same_bytes(backend).removeprefix("not known").partition(":")[0].partition(",")[0],
            )
        )
        rows += [("", each, "", "", "", "", "") for each in more]
    yield from columns(rows, rule=True)
    for plugin, problem in PLUGIN_PROBLEMS.items():
        yield f"plugin {plugin} cannot be used: {problem}"
    yield ""
    yield "Lowers, runs: on this machine. Methods: of a package, in one call or each by itself."
    others = ", ".join(name for name in QUANTIZERS if name not in BACKENDS)
    yield f"Without a partitioner, portable kernels run a method. Quantizers alone: {others}."
    yield "doit backends <name> tells of one what it needs and all of its options."


def describe_backend(name: str) -> Iterator[str]:
    """Describe a backend, or a quantizer without one. Raises PipelineError for an unknown name."""
    known = [*BACKENDS, *(each for each in QUANTIZERS if each not in BACKENDS)]
    if name not in known:
        raise PipelineError(f"no backend '{name}'; {did_you_mean(name, known)}")
    if name not in BACKENDS:
        entry = QUANTIZERS[name]
        yield f"{name}: a quantizer without a partitioner of its own"
        needs = "; ".join(_needs(entry.host.missing())) or "yes"
        yield from _facts({"works here": needs, "versions": _versions(entry.host.distributions)})
        yield ""
        yield from _quantizer(name)
        return
    backend = BACKENDS[name]
    yield f"{backend.name}: {backend.summary}"
    kernels, joint = backend.lowering.kernels, backend.preprocessing.joint
    facts = {
        "delegate": f"none; kernels {kernels}::" if kernels else backend.backend_id,
        "lowers here": "; ".join(_needs(backend.host.missing())) or "yes",
        "runs here": _cannot_run(backend) or _runs(backend) or "not known",
        "methods": "lowered together, in one call" if joint else "each lowered by itself",
        "preprocess": _preprocess(backend),
        "same bytes": _same_bytes(backend),
        "versions": _versions(backend.host.distributions),
        "from": backend.plugin,
    }
    yield from _facts(facts)
    yield ""
    yield f"partitioners: [{{{backend.name}: {{...}}}}]"
    yield from _options(backend.options)
    yield from _options(PartitionerSpec, ("modules",))
    if backend.quantization is not None:
        yield ""
        yield from _quantizer(name)


def _preprocess(backend: Backend) -> str:
    """Describe what makes its payloads, and what does not though it is there."""
    function, details = backend.preprocessing.function, backend.preprocessing.details
    return (function or details) + (f", not {details}" if function and details else "")


def _facts(facts: Mapping[str, str]) -> Iterator[str]:
    for what, told in facts.items():
        if told:
            yield from _wrapped(f"  {what + ':':<13}{told}", 15)


def _versions(distributions: Collection[str]) -> str:
    return ", ".join(f"{each} {version_of(each)}" for each in distributions)


def _same_bytes(backend: Backend) -> str:
    why = backend.preprocessing.unreproducible
    return (why if why.startswith("not known") else f"no: {why}") if why else "yes, every time"


def _quantizer(name: str) -> Iterator[str]:
    yield f"quantize: {{quantizer: {name}, ...}}"
    yield from _options(QUANTIZERS[name].options)


def _runs(backend: Backend) -> str:
    """Empty where that can't be told, since nothing can be lowered to it."""
    if _cannot_run(backend):
        return "no"
    if any(backend.host.missing()):
        return ""
    return "in Python" if backend.execution.make_runtime is not None else "yes"


def _needs(missing: Iterable[Requirement]) -> list[str]:
    """Describe what is needed, with its remedy."""
    by_remedy: dict[str, list[str]] = {}
    for need in missing:
        by_remedy.setdefault(need.remedy, []).append(need.what)
    return [f"needs {' and '.join(what)}: {remedy}" for remedy, what in by_remedy.items()]


def _cannot_run(backend: Backend) -> str:
    cannot_run = backend.execution.cannot_run
    return cannot_run() if cannot_run is not None else ""


def _options(model: type[Options], only: Collection[str] = ()) -> Iterator[str]:
    schema = model.model_json_schema()
    yield from _properties(schema, schema.get("$defs", {}), "  ", only)


def _properties(
    schema: Mapping[str, Any],
    definitions: Mapping[str, Any],
    indent: str,
    only: Collection[str] = (),
) -> Iterator[str]:
    """Each option with its kind, default and help, and those of an option that is a mapping of
    options under it."""
    for name, part in schema.get("properties", {}).items():
        if name == "quantizer" or (only and name not in only):
            continue
        inner = next((each for each in part.get("anyOf", ()) if "description" in each), part)
        description = part.get("description") or inner.get("description", "")
        default = part.get("default")
        said = "" if default in (None, {}) or "const" in part else f" = {_yaml(default)}"
        if name in schema.get("required", ()):
            said = ", required"
        deeper = len(indent) + 4
        yield from _wrapped(f"{indent}{name}: {_kind(part, definitions)}{said}", deeper)
        if description:
            yield from _wrapped(" " * deeper + description, deeper)
        for each in (part, *part.get("anyOf", ())):
            if "$ref" in each:
                inner = definitions[_name_in(each)]
                yield from _properties(inner, definitions, " " * deeper)


def _name_in(reference: Mapping[str, Any]) -> str:
    return str(reference["$ref"]).rpartition("/")[2]


def _kind(part: Mapping[str, Any], definitions: Mapping[str, Any]) -> str:
    """Describe the values of an option, in words of YAML."""
    if "$ref" in part:
        return _kind(definitions[_name_in(part)], definitions)
    if "anyOf" in part:
        kinds = [_kind(each, definitions) for each in part["anyOf"] if each.get("type") != "null"]
        return " or ".join(dict.fromkeys(kinds))
    if "enum" in part:
        return " | ".join(map(_yaml, part["enum"]))
    if "const" in part:
        return _yaml(part["const"])
    kind = part.get("type")
    if kind == "array" and "prefixItems" in part:
        items = [_kind(each, definitions) for each in part["prefixItems"]]
        return f"list of {len(items)}: {', '.join(dict.fromkeys(items))}"
    if kind == "array":
        return f"list of {_kind(part.get('items', {}), definitions)}"
    if kind == "object":
        keys = part.get("propertyNames", {})
        of = _kind(keys, definitions) if "enum" in keys else "names"
        overrides = keys or "patternProperties" in part
        return f"mapping of {of} to options or none" if overrides else "mapping"
    limits = _limits(part)
    names = {"boolean": "true | false", "integer": "whole number", "string": "text"}
    return f"{names.get(str(kind), str(kind or 'any value'))}{limits}"


def _limits(part: Mapping[str, Any]) -> str:
    least, greatest = part.get("minimum"), part.get("maximum")
    if "exclusiveMinimum" in part:
        return f" above {part['exclusiveMinimum']}"
    if least is not None and greatest is not None:
        return f" {least}..{greatest}"
    return "" if least is None else f" from {least}"


def _yaml(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_yaml, value))}]"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _wrapped(text: str, indent: int) -> list[str]:
    return textwrap.wrap(
        text,
        _WIDTH,
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
        drop_whitespace=True,
    )
