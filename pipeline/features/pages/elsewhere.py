"""Separates failures on another device from the figures and verdicts of this machine."""

from __future__ import annotations

from pipeline.report.elements import Json


def is_elsewhere(method: Json, failure: Json) -> bool:
    """Return whether a failure occurred on another device.

    No program on this machine reproduces such a failure.
    """
    devices = method.get("devices") or ()
    places = tuple(f"on {device}{mark}" for device in devices for mark in ",:")
    return bool(places) and failure["what"].startswith(places)


def verdict_here(method: Json) -> str:
    """Return this machine's verdict on a method's lowering.

    It is "" if another device failed and nothing else is known.
    """
    for facts in (method.get("devices") or {}).values():
        if "verdict_here" in facts:
            return str(facts["verdict_here"])
    if method["verdict"] != "failed" or not method["failures"]:
        return str(method["verdict"])
    others: set[str] = set()
    has_limits = False
    for failure in method["failures"]:
        if is_elsewhere(method, failure):
            has_limits |= failure.get("of_limit") is not None
        elif not failure.get("about"):
            return "failed"
    for facts in (method.get("devices") or {}).values():
        # A device whose outputs are within the limits is recorded with the verdict of this machine.
        if facts["verdict"] != "failed" and "calls" in facts:
            others.add(facts["verdict"])
    if others:
        return others.pop()
    return "passed" if has_limits else ""
