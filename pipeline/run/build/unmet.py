"""What a config asks of a method and did not happen: delegates that took nothing, a quantization
of nothing.

Such a package would be green because nothing reached the accelerator that it is for. Linking
refuses it, from the records of compiled methods, so that the config can be mended without
compiling again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pipeline.store.errors import join, listed, plural

Json = Mapping[str, Any]


def find_unmet(methods: Mapping[str, Json], lowering: Mapping[str, Json]) -> Iterator[str]:
    """Yield a line for each partitioner and quantizer that did nothing, and is not allowed to.

    Args:
        methods: compiled methods by name (`CompiledMethod` as JSON).
        lowering: the resolved configs of the methods.
    """
    for name, method in sorted(methods.items()):
        if lowering[name].get("allow_none"):
            continue
        path = join("methods", name)
        accepts = f"or say `allow_none: true` in {path}"
        for number, uptake in _find_idle(method["delegation"]["partitioners"]):
            where = join(join(path, "partitioners"), number)
            remedy = "leave it out"
            if len(method["delegation"]["partitioners"]) == 1:
                remedy = "`partitioners: []` is for portable operators only"
            yield f"{where}: {_describe_idle(uptake)}; {remedy}, {accepts}"
        if (facts := method.get("quantization")) and _quantizes_nothing(facts):
            remedy = "leave it out, name a quantizer that takes these operators"
            yield f"{path}.quantize: {_describe_nothing(facts)}; {remedy}, {accepts}"


def _find_idle(uptakes: Sequence[Json]) -> Iterator[tuple[int, Json]]:
    """Yield the partitioners that took nothing, with their places in the config.

    Those after one that took something are fallbacks, for whatever it leaves. One that takes
    nothing before any other did was meant to be the method's delegate, and is not.
    """
    for number, uptake in enumerate(uptakes):
        if uptake["taken"]:
            return
        if uptake["offered"]:
            yield number, uptake


def _describe_idle(uptake: Json) -> str:
    reasons = [_describe_refusal(each) for each in uptake["refusals"]]
    why = f" ({', '.join(reasons)})" if reasons else ""
    calls = plural(uptake["offered"], "operator call")
    return f"{uptake['partitioner']} takes none of its {calls}{why}"


def _describe_refusal(refusal: Json) -> str:
    number, operator = refusal["calls"], refusal["operator"]
    calls = f"{number} of {operator}" if number > 1 else operator
    return f"{calls}: {refusal['reason']}" if refusal["reason"] else calls


def _quantizes_nothing(facts: Json) -> bool:
    return not facts["conversions"] and not facts["weights"]["quantized"]


def _describe_nothing(facts: Json) -> str:
    left = [f"{each['name']}: {each['why']}" for each in facts["left_float"]]
    why = f" ({listed(left, 3)})" if left else ""
    return f"{facts['quantizer']} quantizes nothing{why}"
