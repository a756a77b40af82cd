"""What `doit backends` prints: the catalogue as a table, or one entry in full."""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from pipeline.backends import (
    BACKENDS,
    PLUGIN_PROBLEMS,
    QUANTIZERS,
    Backend,
    Options,
    PartitionerSpec,
)
from pipeline.columns import columns
from pipeline.errors import PipelineError, did_you_mean
from pipeline.toolchain import version_of

_WIDTH = 100


def list_backends() -> Iterator[str]:
    rows = [("backend", "for", "lowers here", "runs here", "methods", "quantizer", "same bytes")]
    for backend in BACKENDS.values():
        rows.append(
            (
                backend.name,
                backend.summary,
                "no" if _obstacles(backend) else "yes",
                _runs(backend),
                "together" if backend.joint else "apart",
                "yes" if backend.quantizer is not None else "",
                "no" if backend.unreproducible else "yes",
            )
        )
    yield from columns(rows, rule=True)
    for plugin, problem in PLUGIN_PROBLEMS.items():
        yield f"plugin {plugin} cannot be used: {problem}"
    yield ""
    others = ", ".join(name for name in QUANTIZERS if name not in BACKENDS)
    yield f"Without a partitioner, portable kernels run a method. Quantizers alone: {others}."
    yield "doit backends <name> tells of one what it needs and all of its options."


def tell_backend(name: str) -> Iterator[str]:
    """Raises PipelineError for one that is not there."""
    known = [*BACKENDS, *(each for each in QUANTIZERS if each not in BACKENDS)]
    if name not in known:
        raise PipelineError(f"no backend '{name}'; {did_you_mean(name, known)}")
    if name not in BACKENDS:
        yield from _quantizer(name)
        return
    backend = BACKENDS[name]
    yield f"{backend.name}: {backend.summary}"
    facts = {
        "delegate": backend.backend_id,
        "lowers here": "; ".join(_obstacles(backend)) or "yes",
        "runs here": _cannot_run(backend) or _runs(backend),
        "methods": "lowered together, in one call" if backend.joint else "each lowered by itself",
        "preprocess": _preprocess(backend),
        "same bytes": backend.unreproducible or "yes, every time",
        "versions": ", ".join(f"{each} {version_of(each)}" for each in backend.distributions),
        "from": backend.plugin,
    }
    for what, told in facts.items():
        if told:
            yield from _wrapped(f"  {what + ':':<13}{told}", 15)
    yield ""
    yield f"partitioners: [{{{backend.name}: {{...}}}}]"
    yield from _options(backend.options)
    yield from _options(PartitionerSpec, ("modules",))
    if backend.quantizer is not None:
        yield ""
        yield from _quantizer(name)


def _preprocess(backend: Backend) -> str:
    """What makes its payloads, and what does not though it is there."""
    both = backend.preprocess and backend.details
    return (backend.preprocess or backend.details) + (f", not {backend.details}" if both else "")


def _quantizer(name: str) -> Iterator[str]:
    yield f"quantize: {{quantizer: {name}, ...}}"
    yield from _options(QUANTIZERS[name].options)


def _runs(backend: Backend) -> str:
    """Empty where that can't be told, since nothing can be lowered to it."""
    if _cannot_run(backend):
        return "no"
    if _obstacles(backend):
        return ""
    return "yes, in Python" if backend.make_runtime is not None else "yes"


def _obstacles(backend: Backend) -> list[str]:
    """Why nothing can be lowered to it here."""
    if backend.unsupported:
        return [f"no: it {backend.unsupported}"]
    return [f"needs {need.what}: {need.remedy}" for need in backend.missing()]


def _cannot_run(backend: Backend) -> str:
    return backend.cannot_run() if backend.cannot_run is not None else ""


def _options(model: type[Options], only: Collection[str] = ()) -> Iterator[str]:
    schema = model.model_json_schema()
    definitions = schema.get("$defs", {})
    for name, part in schema.get("properties", {}).items():
        if name != "quantizer" and (name in only or not only):
            inner = next((each for each in part.get("anyOf", ()) if "description" in each), part)
            description = part.get("description") or inner.get("description", "")
            yield from _option(name, _kind(part, definitions), part.get("default"), description)


def _option(name: str, kind: str, default: Any, description: str) -> Iterator[str]:
    value = "" if default is None else f" = {_yaml(default)}"
    yield from _wrapped(f"  {name}: {kind}{value}", 6)
    if description:
        yield from _wrapped(f"      {description}", 6)


def _kind(part: Mapping[str, Any], definitions: Mapping[str, Any]) -> str:
    """What can stand there, in words of YAML."""
    if "$ref" in part:
        return _kind(definitions[part["$ref"].rpartition("/")[2]], definitions)
    if "anyOf" in part:
        kinds = [_kind(each, definitions) for each in part["anyOf"] if each.get("type") != "null"]
        return " or ".join(dict.fromkeys(kinds))
    if "enum" in part:
        return " | ".join(map(_yaml, part["enum"]))
    if "const" in part:
        return _yaml(part["const"])
    kind = part.get("type")
    if kind == "array":
        return f"list of {_kind(part.get('items', {}), definitions)}"
    if kind == "object":
        return "mapping"
    least, greatest = part.get("minimum"), part.get("maximum")
    limits = f" {least}..{greatest}" if least is not None and greatest is not None else ""
    names = {"boolean": "true | false", "integer": "whole number", "string": "text"}
    return f"{names.get(str(kind), str(kind or 'any value'))}{limits}"


def _yaml(value: Any) -> str:
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
