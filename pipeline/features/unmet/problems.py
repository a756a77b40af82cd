"""Refuses a package if a partitioner delegated nothing, or a quantizer quantized nothing.

Such a package would pass because nothing reached the accelerator that it is for. The link refuses
it, from the records of compiled methods, so that fixing the config needs no new compile.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pipeline.store.compiled import NOT_QUANTIZED
from pipeline.store.errors import Problem, join, listed

Json = Mapping[str, Any]

_PORTABLE = "`partitioners: []` is for portable operators only"


def find_unmet(
    methods: Mapping[str, Json], lowering: Mapping[str, Json]
) -> Iterator[Problem]:
    """Yield a problem for each partitioner and quantizer that did nothing without being allowed to.

    Args:
        methods: compiled methods by name (`store.compiled.COMPILED_METHOD`).
        lowering: the resolved configs of the methods.
    """
    for name, method in sorted(methods.items()):
        if lowering[name].get("allow_none"):
            continue
        path = join("methods", name)
        accepts = f"or set `allow_none: true` in {path}"
        uptakes = method["delegation"]["partitioners"]
        for number, uptake in _find_idle(uptakes):
            where = join(join(path, "partitioners"), number)
            # A delegate that holds only views doesn't count.
            kind = (
                " that compute" if method["delegation"].get("delegated_nodes") else ""
            )
            reasons = _describe_reasons(uptake)
            mistake = (
                f"{uptake['partitioner']} supports none of its operators{kind}{reasons}"
            )
            remedy = "leave it out" if len(uptakes) > 1 else _PORTABLE
            if any(
                refusal["reason"] == NOT_QUANTIZED for refusal in uptake["refusals"]
            ):
                remedy = (
                    f"set `quantize: {{quantizer: {uptake['partitioner']}}}` in {path}"
                )
            yield Problem("", where, mistake, f"{remedy}, {accepts}")
        facts = method.get("quantization")
        if facts and method["delegation"]["nodes"] and _quantizes_nothing(facts):
            mistake = f"{facts['quantizer']} quantizes nothing{_describe_left(facts)}"
            remedy = "leave it out, name a quantizer that takes these operators"
            yield Problem("", join(path, "quantize"), mistake, f"{remedy}, {accepts}")


def _find_idle(uptakes: Sequence[Json]) -> Iterator[tuple[int, Json]]:
    """Yield the partitioners that took nothing, with their positions in the config.

    Partitioners after one that took something are fallbacks for the remaining nodes. A partitioner
    that takes nothing before any other did was meant to be the method's delegate, and is not.
    """
    for number, uptake in enumerate(uptakes):
        if uptake["taken"]:
            return
        if uptake["offered"]:
            yield number, uptake


def _describe_reasons(uptake: Json) -> str:
    reasons = [_describe_refusal(refusal) for refusal in uptake["refusals"]]
    return f" ({', '.join(reasons)})" if reasons else ""


def _describe_refusal(refusal: Json) -> str:
    number, operator = refusal["calls"], refusal["operator"]
    calls = f"{number} of {operator}" if number > 1 else operator
    return f"{calls}: {refusal['reason']}" if refusal["reason"] else calls


def _quantizes_nothing(facts: Json) -> bool:
    return not facts["conversions"] and not facts["weights"]["quantized"]


def _describe_left(facts: Json) -> str:
    left_float = [
        f"{operator['name']}: {operator['why']}" for operator in facts["left_float"]
    ]
    return f" ({listed(left_float, 3)})" if left_float else ""
