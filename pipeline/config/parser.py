"""Package configs: parses what files of `partition_configs/` hold to a PackageConfig a package.

pydantic walks the data; its errors are put in this project's words at each model on the way, so
that every mistake is reported with where it is and what would be right.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

from pydantic import ValidationError, create_model
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError

from pipeline.backends import (
    BACKENDS,
    PLUGIN_PROBLEMS,
    QUANTIZERS,
    RECIPES,
    Options,
    PartitionerSpec,
    QuantizeConfig,
)
from pipeline.backends.options import Modules
from pipeline.backends.quantize_options import OVERRIDE_TAGS
from pipeline.config.compose import KEYS, Composition, Document
from pipeline.config.edge import FACTORY, PassSpec
from pipeline.config.features import PACKAGE_KEYS
from pipeline.config.fields import (
    REFERENCE_PATTERN,
    RULES,
    find_missing_feature,
    is_method,
    is_reference,
    wrong_package_name,
)
from pipeline.config.misplaced import find_remedy
from pipeline.config.models import OMIT, MethodConfig, PackageConfig
from pipeline.store.errors import (
    ConfigErrors,
    Problem,
    did_you_mean,
    join,
    plural,
    shown,
)

_M = TypeVar("_M", bound=Options)
_K = TypeVar("_K")
_Handler = Callable[[Any], Any]
PORTABLE = "write `partitioners: []` for portable operators only"
_MOST_PROBLEMS = 100  # of a document
_REMEDIES = {
    "model": "name one of models/",
    "methods": "name every method of the model",
    "partitioners": PORTABLE,
}
_MAPPINGS: dict[type[Options], str] = {
    PackageConfig: "begin with `model:`",
    MethodConfig: PORTABLE,
    QuantizeConfig: "write {quantizer: <name>}",
}
# By pydantic's type of error. One that is not here gets a sentence that is true of all.
_MUST_BE = {
    "bool_type": "must be true or false",
    "dict_type": "must be a mapping",
    "finite_number": "must be a finite number",
    "float_type": "must be a number",
    "greater_than": "must be more than {gt:.15g}",
    "greater_than_equal": "must be at least {ge:.15g}",
    "int_type": "must be a whole number",
    "less_than_equal": "must be at most {le:.15g}",
    "string_type": "must be text",
    "string_unicode": "must be text",
    "too_short": "must name at least one",
    "tuple_type": "must be a list",
}


@dataclass(frozen=True)
class Parsed:
    """The config of a package, or what is wrong with it, and the document it was parsed from."""

    config: PackageConfig | None = None
    document: Document | None = None
    problems: tuple[Problem, ...] = ()


def parse_package(package: str, compositions: Sequence[Composition]) -> Parsed:
    """Parse a package of the files that make it; one that two make has no config."""
    first, *duplicates = compositions
    document = first.documents.get(package)
    fault = f"makes the package '{package}', as {first.file} does"
    problems = [
        Problem(composition.file, "", fault, "keep one") for composition in duplicates
    ]
    try:
        if document is None:
            raise ConfigErrors(first.problems)
        config = parse_document(package, document)
    except ConfigErrors as errors:
        return Parsed(None, document, (*errors.problems, *problems))
    return Parsed(None if problems else config, document, tuple(problems))


def parse_document(package: str, document: Document) -> PackageConfig:
    """Parse a document. Raises ConfigErrors, with every mistake and where it was written."""
    problems = list(document.problems)
    fault = wrong_package_name(package)
    if fault:
        fault_text = f"cannot name a package: {shown(package)} {fault}"
        problems.append(document.problem("", fault_text, "rename the file"))
    try:
        config = parse(PackageConfig, document, KEYS, package=package)
    except ConfigErrors as errors:
        places = {(problem.file, problem.line, problem.path) for problem in problems}
        for problem in errors.problems:
            if (problem.file, problem.line, problem.path) not in places:
                problems.append(problem)
    if problems:
        raise ConfigErrors(problems)
    return config


def parse(
    model: type[_M], document: Document, more_keys: Iterable[str] = (), **unwritten: Any
) -> _M:
    """Parse a document as a model. Raises ConfigErrors, with every mistake.

    Args:
        more_keys: keys that may stand beside the model's own: they were used up before.
        given: values that cannot be written in the document.
    """
    try:
        return model.model_validate(
            document.data, context=_Reader(model, more_keys, unwritten)
        )
    except ValidationError as invalid:
        problems = []
        errors = invalid.errors(include_url=False)
        if len(errors) > _MOST_PROBLEMS:
            fault = f"has {plural(len(errors) - _MOST_PROBLEMS, 'more mistake')}"
            problems.append(Problem(document.file, "", fault, line=0))
        for error in errors[:_MOST_PROBLEMS]:
            path = ""
            context = error["ctx"]
            for key in error["loc"]:
                path = join(path, key)
            at = ""
            if "key" in context:
                at = join(path, context["key"])
            problems.append(
                document.problem(path, context["what"], context["known"], at)
            )
        raise ConfigErrors(problems) from None


def _how_to_write(model: type[Options]) -> str:
    """Return how a mapping is written, "" for one that needs no such hint."""
    if model.shorthand:
        return f"write its {model.shorthand}, or {{{model.shorthand}: <{model.shorthand}>}}"
    return _MAPPINGS.get(model, "")


def _missing_feature(model: type[Options], key: str) -> str:
    """Return the feature that a key needs and that is not installed, or ""."""
    if model is PackageConfig and key in PACKAGE_KEYS and key not in model.model_fields:
        return PACKAGE_KEYS[key]
    for name, field in model.model_fields.items():
        if key == (field.alias or name):
            return find_missing_feature(field)
    return ""


class _Mistakes(list[InitErrorDetails]):
    """The mistakes in a value, in this project's words."""

    def add(
        self, fault: str, hint: str = "", loc: tuple[int | str, ...] = (), **key: Any
    ) -> None:
        """Add a mistake at a place in the value, or of a `key` of the mapping there."""
        kind = PydanticCustomError(
            "mistake", "mistake", {"what": fault, "known": hint, **key}
        )
        self.append(InitErrorDetails(type=kind, loc=loc, input=None))


class _Reader:
    """Reads each model of the way that people write it; pydantic calls it, as the context of a
    validation (`Options`)."""

    def __init__(
        self, root: type[Options], more_keys: Iterable[str], unwritten: dict[str, Any]
    ) -> None:
        self._root = root
        self._more_keys = more_keys
        self._given = unwritten
        self._forms: dict[type[Options], Callable[[Any, _Handler, _Mistakes], Any]] = {
            PackageConfig: self._package,
            MethodConfig: self._method,
            PartitionerSpec: self._partitioner,
            PassSpec: self._pass,
            QuantizeConfig: self._quantize,
        }

    def __call__(self, model: type[Options], data: Any, validate: _Handler) -> Any:
        mistakes = _Mistakes()
        model_value = None
        with _collected(mistakes):
            if model in self._forms:
                model_value = self._forms[model](data, validate, mistakes)
            else:
                model_value = self._mapping(model, data, validate, mistakes)
        if mistakes:
            raise ValidationError.from_exception_data("", mistakes)
        return model_value

    def _mapping(
        self, model: type[Options], data: Any, validate: _Handler, mistakes: _Mistakes
    ) -> Any:
        if model.shorthand and isinstance(data, str):
            data = {model.shorthand: data}
        if not isinstance(data, dict):
            mistakes.add(f"is {shown(data)}, must be a mapping", _how_to_write(model))
            return None
        root = model is self._root
        if root:
            unwritten = self._given
        else:
            unwritten = {}
        fields = []
        for field_name, info in model.model_fields.items():
            if field_name not in unwritten:
                fields.append(info.alias or field_name)
        if root:
            more = self._more_keys
        elif model is MethodConfig:
            more = ["recipe"]
        else:
            more = ()
        values = dict(unwritten)
        for key, value in data.items():
            feature = _missing_feature(model, _word(key))
            if key not in fields and not feature:
                suggestion = did_you_mean(_word(key), [*fields, *more])
                hint = find_remedy(model, _word(key))
                if hint:
                    hint = f"{hint}; {suggestion}"
                else:
                    hint = suggestion
                mistakes.add(
                    f"unknown key {shown(key)}",
                    hint,
                    key=key,
                )
            elif value is None:
                hint = _REMEDIES.get(key, "give it a value or leave it out")
                mistakes.add("is empty", hint, loc=(key,))
            elif value is not False and feature:
                fault = f'this installation has no feature "{feature}"'
                mistakes.add(fault, "leave the key out", loc=(key,))
            else:
                values[key] = value
        with _collected(mistakes) as failed:
            return validate(values)
        with _collected(mistakes):  # rules of the whole hold for the rest too
            validate({key: value for key, value in values.items() if key not in failed})
        return None

    def _package(self, data: Any, validate: _Handler, mistakes: _Mistakes) -> Any:
        methods = _as(dict, _as(dict, data).get("methods"))
        names = [name for name, written in methods.items() if written == OMIT]
        omitted = tuple(filter(is_method, names))
        self._given = {**self._given, "omitted": omitted}
        if omitted:
            packaged = {
                name: method for name, method in methods.items() if name not in omitted
            }
            data = {**data, "methods": packaged}
        for loc, fault, hint in _disagreements(_as(dict, data)):
            mistakes.add(fault, hint, loc)
        return self._mapping(PackageConfig, data, validate, mistakes)

    def _method(self, data: Any, validate: _Handler, mistakes: _Mistakes) -> Any:
        """Read a method, with what its recipe stands for."""
        if not isinstance(data, dict) or "recipe" not in data:
            return self._mapping(MethodConfig, data, validate, mistakes)
        name = data["recipe"]
        recipe = RECIPES.get(_word(name))
        for key in ("quantize", "partitioners"):
            if key in data:
                mistakes.add(
                    "stands beside a recipe, which says it", "keep one", loc=(key,)
                )
        if recipe is None:
            hint = did_you_mean(_word(name), RECIPES)
            mistakes.add(
                f"unknown recipe {shown(name)}",
                hint,
                loc=("recipe",),
            )
        elif "refused" in recipe:
            mistakes.add(
                f"'{name}' can't be had: {recipe['refused']}",
                loc=("recipe",),
            )
        else:
            settings = {key: value for key, value in data.items() if key != "recipe"}
            return self._mapping(
                MethodConfig, {**settings, **recipe}, validate, mistakes
            )
        return None

    def _partitioner(self, data: Any, validate: _Handler, mistakes: _Mistakes) -> Any:
        name, written = _named(data)
        if not isinstance(name, str):
            hint = did_you_mean("", BACKENDS)
            mistakes.add(
                f"is {shown(data)}, must be a name or one `name: {{options}}`", hint
            )
        elif name not in BACKENDS:
            hint = did_you_mean(name, BACKENDS)
            for plugin, why in PLUGIN_PROBLEMS.items():
                hint += f"; plugin {plugin} cannot be used: {why}"
            mistakes.add(f"unknown partitioner {shown(name)}", hint)
        elif not BACKENDS[
            name
        ].lowers:  # the plan says so; nothing here knows its options
            return PartitionerSpec(name=name, options=BACKENDS[name].options())
        else:
            with _collected(mistakes, name):
                parsed = partitioner_options(name).model_validate(written, context=self)
                options = {
                    key: value for key, value in written.items() if key != "modules"
                }
                return PartitionerSpec(
                    name=name,
                    options=BACKENDS[name].options.model_validate(options),
                    modules=parsed.modules,  # type: ignore[attr-defined]
                )
        return None

    def _pass(self, data: Any, validate: _Handler, mistakes: _Mistakes) -> Any:
        name, options = _named(data)
        factory = name == FACTORY
        if factory:
            name, options = _named(options)
        if not isinstance(name, str) or not is_reference(name):
            mistakes.add(f"is {shown(name)}, {RULES[REFERENCE_PATTERN]}")
        elif not isinstance(options, dict) or not all(
            isinstance(key, str) for key in options
        ):
            loc: tuple[str, ...] = (name,)
            if factory:
                loc = (FACTORY, name)
            mistakes.add(f"is {shown(options)}, must be a mapping of options", loc=loc)
        else:
            return validate({"reference": name, "options": options, "factory": factory})
        return None

    def _quantize(self, data: Any, validate: _Handler, mistakes: _Mistakes) -> Any:
        name = ""
        if isinstance(data, dict):
            name = _word(data.get("quantizer"))
        if name in QUANTIZERS:
            return QUANTIZERS[name].options.model_validate(data, context=self)
        if not isinstance(data, dict):
            return self._mapping(QuantizeConfig, data, validate, mistakes)
        is_named = "quantizer" in data
        fault = "is missing"
        if is_named:
            fault = f"unknown quantizer {shown(data['quantizer'])}"
        if name in BACKENDS and not BACKENDS[name].lowers:
            fault = f"is {name}, whose quantizer nothing here calls: a plugin would"
        mistakes.add(fault, did_you_mean(name, QUANTIZERS), loc=("quantizer",))
        return None


def _disagreements(
    data: dict[str, Any],
) -> Iterator[tuple[tuple[int | str, ...], str, str]]:
    """Yield where a package contradicts itself, as far as its shape allows to find that."""
    methods = [name for name in _as(dict, data.get("methods")) if isinstance(name, str)]
    for name in _as(dict, data.get("constant_methods")):
        if name in methods:
            yield (
                ("constant_methods", name),
                "is a method of the model too",
                "rename it",
            )
    validation = _as(dict, data.get("validate"))
    for name in _as(dict, validation.get("methods")):
        if isinstance(name, str) and name not in methods:
            hint = did_you_mean(name, methods)
            yield ("validate", "methods", name), "is no method here", hint
    planning = _as(
        dict,
        _as(dict, data.get("emit")).get("memory_planning"),
    )
    shared = planning.get("share_mutable_buffers") is True
    for number, names in enumerate(_as(list, validation.get("sequences"))):
        where = ("validate", "sequences", number)
        for place, name in enumerate(_as(list, names)):
            if isinstance(name, str) and name not in methods:
                hint = did_you_mean(name, methods)
                yield (*where, place), f"'{name}' is no method here", hint
        distinct_names = {str(name) for name in _as(list, names)}
        if len(distinct_names) > 1 and not shared:
            fault = "its methods share no state: each has buffers of its own"
            yield (
                where,
                fault,
                "say `emit: {memory_planning: {share_mutable_buffers: true}}`",
            )


def _as(kind: type[_K], value: object) -> _K:
    if isinstance(value, kind):
        return value
    return kind()


@cache
def partitioner_options(name: str) -> type[Options]:
    """Return the model of what is written for a partitioner: its options, and `modules`."""
    base = BACKENDS[name].options
    return create_model(
        base.__name__,
        __base__=base,
        __doc__=base.__doc__,
        __module__=base.__module__,
        modules=(Modules | None, None),
    )


@contextmanager
def _collected(mistakes: _Mistakes, *place: str) -> Iterator[set[int | str]]:
    """Add the mistakes of what is validated within, which stands at a place. The set that it yields
    then holds the keys of inner mappings with mistakes."""
    failed: set[int | str] = set()
    try:
        yield failed
    except ValidationError as invalid:
        places = {mistake["loc"][:1] for mistake in mistakes}
        for error in invalid.errors(include_url=False):
            loc = tuple(s for s in error["loc"] if s not in ("[key]", *OVERRIDE_TAGS))
            if error["type"] == "mistake":
                context = dict(error["ctx"])
                fault = context.pop("what")
                hint = context.pop("known")
                mistakes.add(
                    fault,
                    hint,
                    (*place, *loc),
                    **context,
                )
                failed.update(loc[:1])
            elif error["type"] == "too_short" and error["input"]:
                continue  # some of its members are wrong
            elif error["type"] != "missing" or loc not in places:
                mistakes.add(*_describe(error), loc=(*place, *loc))


def _named(data: Any) -> tuple[Any, Any]:
    """Take apart a name, or a name as the one key of a mapping with its options."""
    if isinstance(data, dict) and len(data) == 1:
        ((name, options),) = data.items()
        return name, options
    return data, {}


def _describe(error: ErrorDetails) -> tuple[str, str]:
    """Return what is wrong and what would be right, of one of pydantic's errors."""
    kind = error["type"]
    value = error["input"]
    context = error.get("ctx", {})
    key = ""
    if error["loc"]:
        key = str(error["loc"][-1])
    if kind == "missing":
        return "is missing", _REMEDIES.get(key, "")
    if kind in ("literal_error", "unknown"):
        listed = re.findall(
            r"'([^']*)'|([\w-]+)", context.get("expected", "").replace(" or ", ", ")
        )
        names = context.get("known") or [text or word for text, word in listed]
        hint = did_you_mean(_word(value), names, 60)
        return f"is {shown(value)}, must be one of those known", hint
    if kind == "rule" and not key:  # of several members
        return error["msg"], ""
    hint = ""
    if kind == "rule":
        must = error["msg"]
    elif kind == "string_pattern_mismatch":
        must = RULES[context["pattern"]]
    else:
        must = _MUST_BE.get(kind, "which is not allowed here").format(**context)
    if kind == "string_type" and isinstance(value, int | float):
        hint = "quote it"
    elif kind == "tuple_type":
        single_word = re.fullmatch(r"[\w.:/-]{1,60}", _word(value))
        if single_word:
            hint = f"write [{value}]"
        else:
            hint = _REMEDIES.get(key, "")
    return f"is {shown(value)}, {must}", hint


def _word(value: object) -> str:
    if isinstance(value, str):
        return value
    return ""
