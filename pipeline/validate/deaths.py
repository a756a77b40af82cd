"""A validation that knows of the workers that died of its package."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from pipeline.validate.crashes import Death
from pipeline.validate.results import Failure, MethodValidation, Validation


def validated_after(
    deaths: Sequence[Death], name: str, validate: Callable[[Mapping[str, str]], Validation]
) -> Validation:
    """What `validate` gives where the methods that ended a process are not run, and fail.

    Args:
        name: the package's file.
        validate: takes by method why it is not run.
    """
    for death in deaths:
        if not death.method:  # not even a list of its methods can be had
            return Validation(name, (), (f"{name}: {death.sentence}",), {})
    validation = validate({death.method: death.sentence for death in deaths})
    fatal = {death.method: Failure(death.method, death.sentence) for death in deaths}
    methods = tuple(_failed(method, fatal) for method in validation.methods)
    sentences = [failure.sentence for failure in fatal.values()]
    return replace(validation, methods=methods, failures=(*sentences, *validation.failures))


def _failed(method: MethodValidation, fatal: Mapping[str, Failure]) -> MethodValidation:
    """It stays one that is not run, for all who would run it again to find out more."""
    if method.method not in fatal:
        return method
    return replace(method, failures=(fatal[method.method], *method.failures))
