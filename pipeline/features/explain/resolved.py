"""`doit plan --resolved`: the effective value of each setting of a package, and its origin.

The output is a config: parsed again, it resolves to the same values. Defaults and the values behind
a recipe are comments.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pipeline.backends import Options, PartitionerSpec
from pipeline.backends.quantize_options import NOT, OVERRIDES, MixedQuantize
from pipeline.config.compose import Document
from pipeline.config.edge import FACTORY, PassSpec
from pipeline.config.models import OMIT, MethodConfig, PackageConfig
from pipeline.config.reader import partitioner_options
from pipeline.config.secrets import Secret
from pipeline.config.yaml import Node, dump_flow
from pipeline.store.errors import join

_INDENT = "  "


# A line, which is a comment if nobody wrote its value, and the origin of the value.
_Line = tuple[str, str]


def resolved_view(config: PackageConfig, document: Document) -> Iterator[str]:
    """Yield the lines on the effective config of a package."""
    lines = list(_View(document).model(config, "", ""))
    width = max(len(text) for text, _ in lines)
    yield f"# {config.package}: {document.file}"
    for text, origin in lines:
        yield f"{text:<{width}}  # {origin}" if origin else text


class _View:
    def __init__(self, document: Document) -> None:
        self._document = document

    def model(
        self, model: Options, path: str, indent: str, unwritten: str = "default"
    ) -> Iterator[_Line]:
        """Yield the values of a model; `unwritten` is the comment on values that nobody wrote."""
        for name, info in type(model).model_fields.items():
            key = info.alias or name
            value = getattr(model, name)
            origin = unwritten
            if isinstance(model, MixedQuantize) and name in OVERRIDES:
                # With the options they leave out, which come from the whole method.
                value = {
                    n: setting or NOT for n, setting in model.overrides(name).items()
                }
                origin = "default"
                if value:
                    origin = "as for the method"
            if isinstance(model, PackageConfig):
                if key in (
                    "package",
                    "omitted",
                ):  # the name of the file, or of one of a matrix
                    continue
                if key == "methods":
                    value = {**value, **dict.fromkeys(model.omitted, OMIT)}
            yield from self._member(key, value, join(path, key), indent, origin)
        recipe = self._document.written(join(path, "recipe"))
        if recipe is not None and isinstance(model, MethodConfig):
            yield from self._member(
                "recipe", recipe.value, join(path, "recipe"), indent
            )

    def _member(
        self, key: str, value: Any, path: str, indent: str, unwritten: str = "default"
    ) -> Iterator[_Line]:
        node = self._document.written(path)
        head = f"{indent}{dump_flow(key)}:"
        if isinstance(value, Options):
            rows = list(self.model(value, path, indent + _INDENT, unwritten))
            yield from _under(head, " {}" if node else None, rows)
        elif node is None:
            if value is None:
                shown = "none"
            else:
                shown = _flow(value)
            yield f"{indent}# {dump_flow(key)}: {shown}", unwritten
        elif isinstance(value, dict) and value:
            rows = []
            for part, member in value.items():
                rows += self._member(
                    part,
                    member,
                    join(path, part),
                    indent + _INDENT,
                    unwritten,
                )
            yield from _under(head, " {}", rows)
        elif isinstance(value, list | tuple) and any(
            isinstance(part, Options) for part in value
        ):
            yield head, ""
            for index, part in enumerate(value):
                yield from self._item(part, join(path, index), indent + _INDENT)
        else:
            yield f"{head} {_flow(value)}", _origin(node, path)

    def _item(
        self, item: PartitionerSpec | PassSpec, path: str, indent: str
    ) -> Iterator[_Line]:
        """Yield the lines on an item: its name, or its name as a key with its options."""
        node = self._document.written(path)
        if node is None:
            origin = ""
        else:
            origin = _origin(node, path)
        if isinstance(item, PassSpec):
            yield f"{indent}- {_flow(item)}", origin
            return
        options = _written(item)
        lines = list(self.model(options, join(path, item.name), indent + 2 * _INDENT))
        colon = ""
        if not _are_comments(lines):
            colon = ":"
        yield f"{indent}- {item.name}{colon}", origin
        yield from lines


def _written(spec: PartitionerSpec) -> Options:
    """Return the options of a partitioner as they were written, with its modules."""
    values = {**dict(spec.options), "modules": spec.modules}
    return partitioner_options(spec.name).model_construct(**values)


def _under(head: str, empty: str | None, lines: list[_Line]) -> Iterator[_Line]:
    """Yield a key with lines below it. If all lines are comments, the key's value is `empty`, or,
    if that is None, the key is a comment, too."""
    if not _are_comments(lines):
        yield head, ""
    elif empty is None:
        key = head.lstrip()
        yield f"{head.removesuffix(key)}# {key}", ""
    else:
        yield head + empty, ""
    yield from lines


def _are_comments(lines: Iterable[_Line]) -> bool:
    return all(text.lstrip().startswith("#") for text, _ in lines)


def _origin(node: Node, path: str) -> str:
    """Describe the origin of a value: its file and line, its key there if that differs, such as
    `defaults`, and the text of a value with variables."""
    config_path = path.split(".")
    source_path = node.path.split(".")
    while config_path and source_path and config_path[-1] == source_path[-1]:
        config_path = config_path[:-1]
        source_path = source_path[:-1]
    words = [
        f"{node.file}:{node.line}",
        ".".join(source_path),
        node.source,
    ]
    return ", ".join(word for word in words if word)


def _flow(value: Any) -> str:
    """Format a value on one line, in YAML that variable substitution leaves unchanged."""
    return dump_flow(_plain(value))


def _plain(value: Any) -> Any:
    if isinstance(value, PartitionerSpec):
        return _named(
            value.name, _written(value).model_dump(mode="json", exclude_defaults=True)
        )
    if isinstance(value, PassSpec):
        named = _named(value.reference, value.options)
        if value.factory:
            return {FACTORY: named}
        return named
    if isinstance(value, Options):
        return _plain(value.resolved())
    if isinstance(value, list | tuple):
        return [_plain(member) for member in value]
    if isinstance(value, dict):
        return {key: _plain(member) for key, member in value.items()}
    if isinstance(value, Secret):
        return str(value)
    if isinstance(value, str):
        # A single dollar sign would start a variable when the line is parsed again.
        return value.replace("$", "$$")
    return value


def _named(name: str, options: Mapping[str, Any]) -> Any:
    if options:
        return {name: _plain(dict(options))}
    return name
