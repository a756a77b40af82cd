"""The parser makes models of the plain data of a config, and collects every mistake with its path.

pydantic checks the values of a mapping; its errors are put in this project's words. The mapping's
keys and its inner parts are walked here, where the path is known.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar, get_args, get_origin

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from pipeline.backends import (
    BACKENDS,
    PLUGIN_PROBLEMS,
    QUANTIZERS,
    RECIPES,
    Options,
    PartitionerSpec,
    QuantizeConfig,
)
from pipeline.backends.quantize_options import NOT, OVERRIDES, MixedQuantize
from pipeline.config.fields import METHOD_PATTERN, REFERENCE_PATTERN, RULES
from pipeline.config.models import (
    EdgeConfig,
    EmitConfig,
    MethodConfig,
    PackageConfig,
    PassSpec,
)
from pipeline.store.errors import Problem, did_you_mean, join, shown

_M = TypeVar("_M", bound=Options)
PORTABLE = "write `partitioners: []` for portable operators only"
_REMEDIES = {
    "model": "name one of models/",
    "methods": "name every method of the model",
    "partitioners": PORTABLE,
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


class Parser:
    """Makes models of the data of one package, and collects what is wrong with it.

    What it cannot make it leaves out; the caller looks at `problems` in the end.

    Args:
        problem: makes a problem of a path of the data, what is wrong, what is known, and the path
            of the member that it is about, or "".
        more_keys: keys that may stand beside a package's own: they were used up before.
    """

    def __init__(
        self, problem: Callable[[str, str, str, str], Problem], more_keys: Iterable[str] = ()
    ) -> None:
        self.problems: list[Problem] = []
        self._problem = problem
        self._more_keys = tuple(more_keys)
        # Those of other members follow from their annotations.
        self._parsers: dict[tuple[type[Options], str], Callable[[Any, str], Any]] = {
            (PackageConfig, "methods"): self._methods,
            (MethodConfig, "partitioners"): self._partitioners,
            (MethodConfig, "quantize"): self._quantize,
            (EdgeConfig, "passes"): self._passes,
            (EmitConfig, "passes"): self._passes,
        }

    def wrong(self, path: str, what: str, known: str = "", at: str = "") -> None:
        self.problems.append(self._problem(path, what, known, at))

    def _is(self, kind: type, data: Any, path: str, must: str, known: str = "") -> bool:
        if not isinstance(data, kind):
            self.wrong(path, f"is {shown(data)}, must be {must}", known)
        return isinstance(data, kind)

    def section(
        self, model: type[_M], data: Any, path: str, also: Sequence[str] = (), **given: Any
    ) -> _M | None:
        """Make a model of a mapping; None where something is wrong with it.

        Args:
            also: more keys that are allowed, which are left to the caller.
            given: values that cannot be written in the mapping.
        """
        if not self._is(dict, data, path, "a mapping", PORTABLE if model is MethodConfig else ""):
            return None
        fields = {f.alias or n: f for n, f in model.model_fields.items() if n not in given}
        values: dict[str, Any] = dict(given)
        failed: set[str] = set()
        for key, value in data.items():
            before, here = len(self.problems), join(path, key)
            if key not in fields and key not in also:
                more = self._more_keys if model is PackageConfig else ()
                known = did_you_mean(_word(key), [*fields, *also, *more])
                self.wrong(path, f"unknown key {shown(key)}", known, here)
            elif value is None:
                self.wrong(here, "is empty", _REMEDIES.get(key, "give it a value or leave it out"))
            elif key not in also:
                values[key] = self._member(model, key, fields[key].annotation, value, here)
            if len(self.problems) > before:
                failed.add(key)
        return self._validated(model, values, failed, path)

    def _member(
        self, model: type[Options], key: str, annotation: Any, value: Any, path: str
    ) -> Any:
        if parse := self._parsers.get((model, key)):
            return parse(value, path)
        if issubclass(model, MixedQuantize) and key in OVERRIDES:
            return self._overrides(model, key, value, path)
        inner = next(filter(_is_options, (annotation, *get_args(annotation))), None)
        if inner is None:
            return value
        if get_origin(annotation) is not dict:
            return self.section(inner, value, path)
        if not self._is(dict, value, path, f"a mapping of {key}"):
            return None
        return {name: self.section(inner, each, join(path, name)) for name, each in value.items()}

    def _validated(
        self, model: type[_M], values: dict[str, Any], failed: set[str], path: str
    ) -> _M | None:
        try:
            return model.model_validate({k: v for k, v in values.items() if k not in failed})
        except ValidationError as invalid:
            errors = invalid.errors(include_url=False)
        places = {error["loc"] for error in errors}
        for error in errors:
            place = error["loc"]
            inner = any(p != place and p[: len(place)] == place for p in places)
            if not (place and place[0] in failed) and not inner:
                what, known = _describe(error) if place else (error["msg"], "")
                self.wrong(_path(path, place), what, known)
        return None

    def _methods(self, data: Any, path: str) -> dict[str, MethodConfig | None] | None:
        if not self._is(dict, data, path, "a mapping of methods"):
            return None
        for name in data:
            if not isinstance(name, str) or not re.fullmatch(METHOD_PATTERN, name):
                what = f"cannot name a method: {shown(name)} {RULES[METHOD_PATTERN]}"
                self.wrong(path, what, at=join(path, name))
        return {n: self._method(value, join(path, n)) for n, value in data.items()}

    def _method(self, data: Any, path: str) -> MethodConfig | None:
        if isinstance(data, dict) and "recipe" in data:
            data = self._expanded(data, path)
            if data is None:
                return None
        return self.section(MethodConfig, data, path, also=("recipe",))

    def _expanded(self, data: dict[Any, Any], path: str) -> dict[Any, Any] | None:
        """Write out what a method with a recipe stands for."""
        name, where = data["recipe"], join(path, "recipe")
        recipe = RECIPES.get(_word(name))
        rest = {key: value for key, value in data.items() if key != "recipe"}
        for key in ("quantize", "partitioners"):
            if key in rest:
                self.wrong(join(path, key), "stands beside a recipe, which says it", "keep one")
        if recipe is None:
            self.wrong(where, f"unknown recipe {shown(name)}", did_you_mean(_word(name), RECIPES))
        elif recipe.refused:
            self.wrong(where, f"'{name}' can't be had: {recipe.refused}")
        else:
            return {**rest, **recipe.expanded()}
        return None

    def _partitioners(self, data: Any, path: str) -> tuple[PartitionerSpec | None, ...] | None:
        hint = f"write [{data}]" if isinstance(data, str) and data in BACKENDS else PORTABLE
        if not self._is(list, data, path, "a list", hint):
            return None
        return tuple(self._partitioner(item, join(path, n)) for n, item in enumerate(data))

    def _partitioner(self, data: Any, path: str) -> PartitionerSpec | None:
        name, written = _named(data)
        known = did_you_mean(_word(name), BACKENDS)
        if not isinstance(name, str):
            self.wrong(path, f"is {shown(data)}, must be a name or one `name: {{options}}`", known)
            return None
        if name not in BACKENDS:
            self.wrong(path, f"unknown partitioner {shown(name)}", known + _broken_plugins())
            return None
        path = join(path, name)
        options = self.section(BACKENDS[name].options, written, path, also=("modules",))
        values: dict[str, Any] = {"name": name, "options": options or Options()}
        if isinstance(written, dict) and written.get("modules") is not None:
            values["modules"] = written["modules"]
        spec = self._validated(PartitionerSpec, values, set(), path)
        return None if options is None else spec

    def _passes(self, data: Any, path: str) -> tuple[PassSpec | None, ...] | None:
        if not self._is(list, data, path, "a list", "write [module:name]"):
            return None
        return tuple(self._pass(item, join(path, n)) for n, item in enumerate(data))

    def _pass(self, data: Any, path: str) -> PassSpec | None:
        name, options = _named(data)
        if not isinstance(name, str) or not re.fullmatch(REFERENCE_PATTERN, name):
            self.wrong(path, f"is {shown(name)}, {RULES[REFERENCE_PATTERN]}", "")
            return None
        if not isinstance(options, dict) or not all(isinstance(key, str) for key in options):
            self.wrong(join(path, name), f"is {shown(options)}, must be a mapping of options")
            return None
        return PassSpec(reference=name, options=options)

    def _quantize(self, data: Any, path: str) -> QuantizeConfig | None:
        if not self._is(dict, data, path, "a mapping", "write {quantizer: <name>}"):
            return None
        name = _word(data.get("quantizer"))
        if name in QUANTIZERS:
            return self.section(QUANTIZERS[name].options, data, path)
        there = "quantizer" in data
        what = f"unknown quantizer {shown(data['quantizer'])}" if there else "is missing"
        self.wrong(join(path, "quantizer"), what, did_you_mean(name, QUANTIZERS))
        return None

    def _overrides(
        self, options: type[MixedQuantize], kind: str, data: Any, path: str
    ) -> dict[Any, Any] | None:
        """Parse options by the name of a module or an operator, or that it is not quantized."""
        if not self._is(dict, data, path, "a mapping of names"):
            return None
        scheme = options.scheme
        names = TypeAdapter(get_args(options.model_fields[kind].annotation)[0])
        found: dict[Any, Any] = {}
        for name, value in data.items():
            here = join(path, name)
            try:
                names.validate_python(name)
            except ValidationError as invalid:
                self.wrong(here, *_describe(invalid.errors(include_url=False)[0]))
            if value == NOT:
                found[name] = NOT
            elif not scheme.model_fields:
                self.wrong(here, f"is {shown(value)}, must be {NOT}")
            elif isinstance(value, dict) and value:
                found[name] = self.section(scheme, value, here)
            else:
                what = f"is {shown(value)}, must be a mapping of options, or {NOT}"
                self.wrong(here, what)
        return found


def _is_options(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, Options)


def _named(data: Any) -> tuple[Any, Any]:
    """Take apart a name, or a name as the one key of a mapping with its options."""
    if isinstance(data, dict) and len(data) == 1:
        ((name, options),) = data.items()
        return name, options
    return data, {}


def _broken_plugins() -> str:
    """Describe what else may be the reason why a backend is unknown."""
    problems = PLUGIN_PROBLEMS.items()
    return "".join(f"; plugin {name} cannot be used: {why}" for name, why in problems)


def _path(path: str, place: tuple[int | str, ...]) -> str:
    for key in place:
        path = path if key == "[key]" else join(path, key)
    return path


def _describe(error: ErrorDetails) -> tuple[str, str]:
    """Return what is wrong and what would be right, of one of pydantic's errors."""
    kind, value, context = error["type"], error["input"], error.get("ctx", {})
    if kind == "missing":
        return "is missing", _REMEDIES.get(str(error["loc"][-1]), "")
    if kind in ("literal_error", "unknown"):
        listed = re.findall(
            r"'([^']*)'|([\w-]+)", context.get("expected", "").replace(" or ", ", ")
        )
        names = context.get("known") or [text or other for text, other in listed]
        hint = did_you_mean(_word(value), names, 60)
        return f"is {shown(value)}, must be one of those known", hint
    if kind == "disagreement":
        return error["msg"].partition("; ")[0], error["msg"].partition("; ")[2]
    if kind == "rule":
        must = error["msg"]
    elif kind == "string_pattern_mismatch":
        must = RULES[context["pattern"]]
    else:
        must = _MUST_BE.get(kind, "which is not allowed here").format(**context)
    quote = kind == "string_type" and isinstance(value, int | float)
    return f"is {shown(value)}, {must}", "quote it" if quote else ""


def _word(value: object) -> str:
    return value if isinstance(value, str) else ""
