"""From the plain data of a config to models, collecting every mistake with its path.

pydantic checks the values of a mapping; its errors are told in this project's words. The mapping's
keys and its inner parts are walked here, where the path is known.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
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
    LayoutConfig,
    MemoryPlanning,
    MethodConfig,
    PackageConfig,
    PassSpec,
)
from pipeline.config.validation import ValidateConfig
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
    """Collects the problems of one package while it makes models of its data.

    What it cannot make it leaves out; the caller looks at `problems` in the end. `problem` makes
    one of a path of the data, what is wrong, what is known, and the path of the member that it is
    about, or "". `more_keys` may stand beside a package's own: they were used up before.
    """

    def __init__(
        self, problem: Callable[[str, str, str, str], Problem], more_keys: Iterable[str] = ()
    ) -> None:
        self.problems: list[Problem] = []
        self._problem = problem
        self._more_keys = tuple(more_keys)
        self._parts: dict[type[Options], dict[str, Callable[[Any, str], Any]]] = {
            PackageConfig: {
                "methods": self._methods,
                "emit": partial(self.section, EmitConfig),
                "validate": partial(self.section, ValidateConfig),
            },
            MethodConfig: {
                "partitioners": self._partitioners,
                "quantize": self._quantize,
                "edge": partial(self.section, EdgeConfig),
            },
            EdgeConfig: {"passes": self._passes},
            EmitConfig: {
                "passes": self._passes,
                "memory_planning": partial(self.section, MemoryPlanning),
                "layout": partial(self.section, LayoutConfig),
            },
        }

    def wrong(self, path: str, what: str, known: str = "", at: str = "") -> None:
        self.problems.append(self._problem(path, what, known, at))

    def section(
        self, model: type[_M], data: Any, path: str, also: Sequence[str] = (), **given: Any
    ) -> _M | None:
        """A mapping as a model; what is `given` cannot be written in it. Keys that are allowed
        `also` are left to the caller."""
        if not isinstance(data, dict):
            hint = PORTABLE if model is MethodConfig else ""
            self.wrong(path, f"is {shown(data)}, must be a mapping", hint)
            return None
        names = [f.alias or n for n, f in model.model_fields.items() if n not in given]
        names += also
        values: dict[str, Any] = dict(given)
        failed: set[str] = set()
        for key, value in data.items():
            before = len(self.problems)
            if key not in names:
                more = self._more_keys if model is PackageConfig else ()
                known = did_you_mean(_word(key), [*names, *more])
                self.wrong(path, f"unknown key {shown(key)}", known, join(path, key))
            elif value is None:
                hint = _REMEDIES.get(key, "give it a value or leave it out")
                self.wrong(join(path, key), "is empty", hint)
            elif key in also:
                continue
            elif key in self._parts.get(model, {}):
                values[key] = self._parts[model][key](value, join(path, key))
            elif each := _options_by_name(model, key):
                values[key] = self._by_name(each, value, join(path, key), key)
            elif inner := _options_in(model, key):
                values[key] = self.section(inner, value, join(path, key))
            else:
                values[key] = value
            if len(self.problems) > before:
                failed.add(key)
        return self._validated(model, values, failed, path)

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
                what, known = _told(error) if place else (error["msg"], "")
                self.wrong(_path(path, place), what, known)
        return None

    def _methods(self, data: Any, path: str) -> dict[str, MethodConfig | None] | None:
        if not isinstance(data, dict):
            self.wrong(path, f"is {shown(data)}, must be a mapping of methods")
            return None
        for name in data:
            if not isinstance(name, str) or not re.fullmatch(METHOD_PATTERN, name):
                what = f"cannot name a method: {shown(name)} {RULES[METHOD_PATTERN]}"
                self.wrong(path, what, at=join(path, name))
        return {n: self._method(value, join(path, n)) for n, value in data.items()}

    def _method(self, data: Any, path: str) -> MethodConfig | None:
        if isinstance(data, dict) and "recipe" in data:
            data = self._without_recipe(data, path)
            if data is None:
                return None
        return self.section(MethodConfig, data, path, also=("recipe",))

    def _without_recipe(self, data: dict[Any, Any], path: str) -> dict[Any, Any] | None:
        """What a method with a recipe says, written out."""
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

    def _by_name(
        self, model: type[_M], data: Any, path: str, noun: str
    ) -> dict[Any, _M | None] | None:
        if not isinstance(data, dict):
            self.wrong(path, f"is {shown(data)}, must be a mapping of {noun}")
            return None
        return {n: self.section(model, value, join(path, n)) for n, value in data.items()}

    def _partitioners(self, data: Any, path: str) -> tuple[PartitionerSpec | None, ...] | None:
        if not isinstance(data, list):
            hint = f"write [{data}]" if isinstance(data, str) and data in BACKENDS else PORTABLE
            self.wrong(path, f"is {shown(data)}, must be a list", hint)
            return None
        return tuple(self._partitioner(item, join(path, n)) for n, item in enumerate(data))

    def _partitioner(self, data: Any, path: str) -> PartitionerSpec | None:
        if isinstance(data, dict) and len(data) == 1:
            name, written = next(iter(data.items()))
        else:
            name, written = data, {}
        if not isinstance(name, str):
            what = f"is {shown(data)}, must be a name or one `name: {{options}}`"
            self.wrong(path, what, did_you_mean("", BACKENDS))
            return None
        if name not in BACKENDS:
            what = f"unknown partitioner {shown(name)}"
            self.wrong(path, what, did_you_mean(name, BACKENDS) + _broken_plugins())
            return None
        path = join(path, name)
        options = self.section(BACKENDS[name].options, written, path, also=("modules",))
        values: dict[str, Any] = {"name": name, "options": options or Options()}
        if isinstance(written, dict) and written.get("modules") is not None:
            values["modules"] = written["modules"]
        spec = self._validated(PartitionerSpec, values, set(), path)
        return None if options is None else spec

    def _passes(self, data: Any, path: str) -> tuple[PassSpec | None, ...] | None:
        if not isinstance(data, list):
            self.wrong(path, f"is {shown(data)}, must be a list", "write [module:name]")
            return None
        return tuple(self._pass(item, join(path, n)) for n, item in enumerate(data))

    def _pass(self, data: Any, path: str) -> PassSpec | None:
        options: Any = {}
        if isinstance(data, dict) and len(data) == 1:
            ((data, options),) = data.items()
        if not isinstance(data, str) or not re.fullmatch(REFERENCE_PATTERN, data):
            self.wrong(path, f"is {shown(data)}, {RULES[REFERENCE_PATTERN]}", "")
            return None
        if not isinstance(options, dict) or not all(isinstance(key, str) for key in options):
            self.wrong(join(path, data), f"is {shown(options)}, must be a mapping of options")
            return None
        return PassSpec(reference=data, options=options)

    def _quantize(self, data: Any, path: str) -> QuantizeConfig | None:
        if not isinstance(data, dict):
            self.wrong(path, f"is {shown(data)}, must be a mapping", "write {quantizer: <name>}")
            return None
        name = _word(data.get("quantizer"))
        if name in QUANTIZERS:
            options = QUANTIZERS[name].options
            if issubclass(options, MixedQuantize):
                self._parts[options] = {
                    kind: partial(self._overrides, options, kind) for kind in OVERRIDES
                }
            return self.section(options, data, path)
        there = "quantizer" in data
        what = f"unknown quantizer {shown(data['quantizer'])}" if there else "is missing"
        self.wrong(join(path, "quantizer"), what, did_you_mean(name, QUANTIZERS))
        return None

    def _overrides(
        self, options: type[MixedQuantize], kind: str, data: Any, path: str
    ) -> dict[Any, Any] | None:
        """Options by the name of a module or an operator, or that it is not quantized."""
        if not isinstance(data, dict):
            self.wrong(path, f"is {shown(data)}, must be a mapping of names")
            return None
        scheme = options.scheme
        names = TypeAdapter(get_args(options.model_fields[kind].annotation)[0])
        for name in data:
            try:
                names.validate_python(name)
            except ValidationError as invalid:
                self.wrong(join(path, name), *_told(invalid.errors(include_url=False)[0]))
        found: dict[Any, Any] = {}
        for name, value in data.items():
            if value == NOT:
                found[name] = NOT
            elif not scheme.model_fields:
                self.wrong(join(path, name), f"is {shown(value)}, must be {NOT}")
            elif isinstance(value, dict) and value:
                found[name] = self.section(scheme, value, join(path, name))
            else:
                what = f"is {shown(value)}, must be a mapping of options, or {NOT}"
                self.wrong(join(path, name), what)
        return found


def _options_by_name(model: type[Options], key: str) -> type[Options] | None:
    """The model of what an option that is a mapping of names holds."""
    annotation = model.model_fields[key].annotation if key in model.model_fields else None
    inner = get_args(annotation)[-1:] if get_origin(annotation) is dict else ()
    return next((e for e in inner if isinstance(e, type) and issubclass(e, Options)), None)


def _options_in(model: type[Options], key: str) -> type[Options] | None:
    """The model of an option that is a mapping of options itself."""
    annotation = model.model_fields[key].annotation if key in model.model_fields else None
    for each in (annotation, *get_args(annotation)):
        if isinstance(each, type) and issubclass(each, Options):
            return each
    return None


def _broken_plugins() -> str:
    """What else may be the reason why a backend is unknown."""
    told = [f"plugin {name} cannot be used: {why}" for name, why in PLUGIN_PROBLEMS.items()]
    return "".join(f"; {each}" for each in told)


def _path(path: str, place: tuple[int | str, ...]) -> str:
    for key in place:
        path = path if key == "[key]" else join(path, key)
    return path


def _told(error: ErrorDetails) -> tuple[str, str]:
    """What is wrong and what would be right, of one of pydantic's errors."""
    kind, value, context = error["type"], error["input"], error.get("ctx", {})
    if kind == "missing":
        return "is missing", _REMEDIES.get(str(error["loc"][-1]), "")
    if kind == "literal_error":
        found = re.findall(r"'([^']*)'|([\w-]+)", context["expected"].replace(" or ", ", "))
        names = [text or other for text, other in found]
        return f"is {shown(value)}, must be one of those known", did_you_mean(
            _word(value), names, 60
        )
    if kind == "unknown":
        hint = did_you_mean(_word(value), context["known"], 60)
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
