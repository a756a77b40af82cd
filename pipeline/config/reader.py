"""Reads config models in their YAML spelling: recipes, names with options, and short forms.

pydantic walks the data and calls `Reader` at each model on the way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

from pydantic import ValidationError, create_model

from pipeline.backends import (
    BACKENDS,
    PLUGIN_PROBLEMS,
    QUANTIZERS,
    RECIPES,
    Options,
    PartitionerSpec,
    QuantizeConfig,
)
from pipeline.config.contradictions import as_kind, find_contradictions
from pipeline.config.edge import FACTORY, PassSpec
from pipeline.config.features import PACKAGE_KEYS
from pipeline.config.fields import (
    REFERENCE_PATTERN,
    RULES,
    SelectedModules,
    find_missing_feature,
    is_method,
    is_reference,
)
from pipeline.config.mistakes import PORTABLE, REMEDIES, Mistakes, collected, word
from pipeline.config.models import OMIT, MethodConfig, PackageConfig
from pipeline.moments import call_all
from pipeline.store.errors import did_you_mean, shown

_Handler = Callable[[Any], Any]
_MAPPINGS: dict[type[Options], str] = {
    PackageConfig: "begin with `model:`",
    MethodConfig: PORTABLE,
    QuantizeConfig: "write {quantizer: <name>}",
}


def _how_to_write(model: type[Options]) -> str:
    """Return a hint on how to write a model's mapping, or "" if none is needed."""
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


class Reader:
    """Reads each model from its YAML spelling; pydantic calls it as the context of a validation.

    See `Options`.
    """

    def __init__(
        self, root: type[Options], more_keys: Iterable[str], unwritten: dict[str, Any]
    ) -> None:
        self._root = root
        self._more_keys = more_keys
        self._given = unwritten
        self._forms: dict[type[Options], Callable[[Any, _Handler, Mistakes], Any]] = {
            PackageConfig: self._package,
            MethodConfig: self._method,
            PartitionerSpec: self._partitioner,
            PassSpec: self._pass,
            QuantizeConfig: self._quantize,
        }

    def __call__(self, model: type[Options], data: Any, validate: _Handler) -> Any:
        mistakes = Mistakes()
        model_value = None
        with collected(mistakes):
            if model in self._forms:
                model_value = self._forms[model](data, validate, mistakes)
            else:
                model_value = self._mapping(model, data, validate, mistakes)
        if mistakes:
            raise ValidationError.from_exception_data("", mistakes)
        return model_value

    def _mapping(
        self, model: type[Options], data: Any, validate: _Handler, mistakes: Mistakes
    ) -> Any:
        if model.shorthand and isinstance(data, str):
            data = {model.shorthand: data}
        if not isinstance(data, dict):
            mistakes.add(f"is {shown(data)}, must be a mapping", _how_to_write(model))
            return None
        root = model is self._root
        unwritten = self._given if root else {}
        fields = [
            info.alias or field_name
            for field_name, info in model.model_fields.items()
            if field_name not in unwritten
        ]
        if root:
            more = self._more_keys
        elif model is MethodConfig:
            more = ["recipe"]
        else:
            more = ()
        values = dict(unwritten)
        for key, value in data.items():
            feature = _missing_feature(model, word(key))
            if key not in fields and not feature:
                hints = [*call_all("explain_key", model, word(key))]
                hints.append(did_you_mean(word(key), [*fields, *more]))
                mistakes.add(
                    f"unknown key {shown(key)}",
                    "; ".join(filter(None, hints)),
                    key=key,
                )
            elif value is None:
                hint = REMEDIES.get(key, "give it a value or leave it out")
                mistakes.add("is empty", hint, loc=(key,))
            elif value is not False and feature:
                fault = f'this installation has no feature "{feature}"'
                mistakes.add(fault, "leave the key out", loc=(key,))
            else:
                values[key] = value
        with collected(mistakes) as failed:
            return validate(values)
        with collected(mistakes):  # rules of the whole model apply to the rest too
            validate({key: value for key, value in values.items() if key not in failed})
        return None

    def _package(self, data: Any, validate: _Handler, mistakes: Mistakes) -> Any:
        methods = as_kind(dict, as_kind(dict, data).get("methods"))
        names = [name for name, written in methods.items() if written == OMIT]
        omitted = tuple(filter(is_method, names))
        self._given = {**self._given, "omitted": omitted}
        if omitted:
            packaged = {
                name: method for name, method in methods.items() if name not in omitted
            }
            data = {**data, "methods": packaged}
        for loc, fault, hint in find_contradictions(as_kind(dict, data)):
            mistakes.add(fault, hint, loc)
        return self._mapping(PackageConfig, data, validate, mistakes)

    def _method(self, data: Any, validate: _Handler, mistakes: Mistakes) -> Any:
        """Read a method, with its recipe expanded."""
        if not isinstance(data, dict) or "recipe" not in data:
            return self._mapping(MethodConfig, data, validate, mistakes)
        name = data["recipe"]
        recipe = RECIPES.get(word(name))
        for key in ("quantize", "partitioners"):
            if key in data:
                mistakes.add(
                    "can't be combined with a recipe, which already sets it",
                    "keep one",
                    loc=(key,),
                )
        if recipe is None:
            hint = did_you_mean(word(name), RECIPES)
            mistakes.add(f"unknown recipe {shown(name)}", hint, loc=("recipe",))
        elif "refused" in recipe:
            mistakes.add(
                f"'{name}' is not available: {recipe['refused']}",
                loc=("recipe",),
            )
        else:
            settings = {key: value for key, value in data.items() if key != "recipe"}
            return self._mapping(
                MethodConfig, {**settings, **recipe}, validate, mistakes
            )
        return None

    def _partitioner(self, data: Any, validate: _Handler, mistakes: Mistakes) -> Any:
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
        ].lowers:  # the plan reports it; its options are unknown here
            return PartitionerSpec(name=name, options=BACKENDS[name].options())
        else:
            with collected(mistakes, name):
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

    def _pass(self, data: Any, validate: _Handler, mistakes: Mistakes) -> Any:
        name, options = _named(data)
        factory = name == FACTORY
        if factory:
            name, options = _named(options)
        if not isinstance(name, str) or not is_reference(name):
            mistakes.add(f"is {shown(name)}, {RULES[REFERENCE_PATTERN]}")
        elif not isinstance(options, dict) or not all(
            isinstance(key, str) for key in options
        ):
            loc = (FACTORY, name) if factory else (name,)
            mistakes.add(f"is {shown(options)}, must be a mapping of options", loc=loc)
        else:
            return validate({"reference": name, "options": options, "factory": factory})
        return None

    def _quantize(self, data: Any, validate: _Handler, mistakes: Mistakes) -> Any:
        name = word(data.get("quantizer")) if isinstance(data, dict) else ""
        if name in QUANTIZERS:
            return QUANTIZERS[name].options.model_validate(data, context=self)
        if not isinstance(data, dict):
            return self._mapping(QuantizeConfig, data, validate, mistakes)
        hint, loc = did_you_mean(name, QUANTIZERS), ("quantizer",)
        if (
            name in BACKENDS and not BACKENDS[name].lowers
        ):  # its options are unknown here
            fault = f"is {name}, whose quantizer needs a plugin that is not installed"
            mistakes.add(fault, hint, loc=loc)
            return None
        fault = "is missing"
        if "quantizer" in data:
            fault = f"unknown quantizer {shown(data['quantizer'])}"
        mistakes.add(fault, hint, loc=loc)
        attempts = [self._try(data, name) for name in QUANTIZERS]
        mistakes += sorted(attempts, key=len)[0]
        return None

    def _try(self, data: dict[Any, Any], quantizer: str) -> Mistakes:
        """Return the mistakes that options would have with a quantizer."""
        mistakes = Mistakes()
        with collected(mistakes):
            options = {**data, "quantizer": quantizer}
            QUANTIZERS[quantizer].options.model_validate(options, context=self)
        return mistakes


@cache
def partitioner_options(name: str) -> type[Options]:
    """Return the model of what a config sets for a partitioner: its options, and `modules`."""
    base = BACKENDS[name].options
    return create_model(
        base.__name__,
        __base__=base,
        __doc__=base.__doc__,
        __module__=base.__module__,
        modules=(SelectedModules, None),
    )


def _named(data: Any) -> tuple[Any, Any]:
    """Split a name, or a mapping of one name to its options, into name and options."""
    if isinstance(data, dict) and len(data) == 1:
        ((name, options),) = data.items()
        return name, options
    return data, {}
