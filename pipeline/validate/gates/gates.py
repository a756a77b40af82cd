"""Gates: limits that a config sets on a package, checked against what is known of its build.

What a backend's own kernels run, where it has kernels instead of a delegate, counts as delegated.
A gate that can't be checked fails, and says what would make it checkable; but what this machine
can't run is left alone, as it is by the rest of a validation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from typing import Any

from pipeline.validate.gates.figures import (
    Change,
    Figures,
    MethodFigures,
    figures_of,
    grown,
    method_bytes,
    output_names,
    share,
    share_of_operators,
    sizes_of,
    why_left,
)

Json = Mapping[str, Any]
_MOST = 5  # of each kind that a sentence names


@dataclass(frozen=True)
class GateResult:
    """What came of one gate. `method` is None for the package's; `figure` and `limit` are in the
    unit of the option (a share, bytes, dB, a ratio; for allow_portable_ops the number of calls that
    are not allowed), `figure` None where it is not known; `sentence` says what is wrong, or why it
    was not checked, and is empty otherwise; `place` is where the limit was written."""

    gate: str
    method: str | None
    figure: float | None
    limit: float
    ok: bool
    sentence: str = ""
    place: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def failed_gates(results: Iterable[GateResult]) -> list[str]:
    """What is wrong with a package; what is so of several gates is said once."""
    return list(dict.fromkeys(result.sentence for result in results if not result.ok))


def checked_gates(
    settings: Json,
    manifest: Json,
    contents: Json | None = None,
    validation: Json | None = None,
    baseline: Figures | None = None,
    places: Mapping[str, str] | None = None,
) -> list[GateResult]:
    """The gates that are set: the package's, then method by method.

    Args:
        settings: `validate` of the config, resolved: `gates`, and `methods`, some with their own.
        validation: the record of the package's validation; its `methods` are read.
        places: by path in the config (`validate.gates.max_size`), file and line where it was
            written.
    """
    check = _Check(settings, manifest, contents, validation, baseline, places or {})
    return list(check.results())


class _Check:
    def __init__(
        self,
        settings: Json,
        manifest: Json,
        contents: Json | None,
        validation: Json | None,
        baseline: Figures | None,
        places: Mapping[str, str],
    ) -> None:
        self.package = manifest["package"]
        self.facts = manifest["methods"]
        self.now = figures_of(manifest, contents, validation)
        self.baseline = baseline
        self.arenas = (contents or {}).get("methods", {})
        self.proved = {each["method"]: each for each in (validation or {}).get("methods", ())}
        self.settings = settings
        self.places = places

    def results(self) -> Iterator[GateResult]:
        for gate, check in (("max_size", self._size), ("max_size_growth", self._size_growth)):
            limit = self.settings["gates"].get(gate)
            if limit is not None:
                yield self._made(gate, None, limit, *check(limit))
        checks: dict[str, Callable[[str, Any], _Outcome]] = {
            "min_delegated_nodes": self._nodes,
            "min_delegated_ops": self._operators,
            "allow_portable_ops": self._portable,
            "max_planned_memory": self._memory,
            "max_latency_ratio": self._latency,
            "max_delegation_drop": self._delegation_drop,
            "max_sqnr_drop": self._sqnr_drop,
        }
        for method in self.now["methods"]:
            for gate, check_method in checks.items():
                limit = self._limit(method, gate)
                if limit is not None:
                    yield self._made(gate, method, limit, *check_method(method, limit))

    def _limit(self, method: str, gate: str) -> Any:
        own = self.settings["methods"].get(method, {}).get("gates", {}).get(gate)
        return self.settings["gates"].get(gate) if own is None else own

    def _made(
        self, gate: str, method: str | None, limit: Any, ok: bool, figure: float | None, what: str
    ) -> GateResult:
        """`what` is empty where there is nothing to say."""
        own = f"validate.methods.{method}.gates.{gate}"
        place = self.places.get(own, self.places.get(f"validate.gates.{gate}"))
        number = 0 if gate == "allow_portable_ops" else limit
        whole = not method or not what or what == self._no_baseline()
        sentence = what if whole else f"{method}: {what}"
        return GateResult(gate, method, figure, number, ok, sentence, place or "")

    # Of the package

    def _size(self, limit: int) -> _Outcome:
        size = self.now["size"]
        if size <= limit:
            return True, size, ""
        what = f"the package has {size} bytes, at most {limit} wanted"
        if self.baseline is not None:
            told = "; ".join(self._grown(self.baseline))
            return False, size, f"{what}; {told or 'it was so in the baseline'}"
        parts = sorted(self.now["segments"].items(), key=lambda pair: -pair[1])
        return False, size, f"{what}; {', '.join(f'{kind} {n}' for kind, n in parts)}"

    def _size_growth(self, limit: float) -> _Outcome:
        if self.baseline is None:
            return False, None, self._no_baseline()
        size, before = self.now["size"], self.baseline["size"]
        growth = size / before - 1
        if growth <= limit:
            return True, growth, ""
        what = f"the package grew by {growth:.1%} since the baseline, from {before} to {size} bytes"
        told = "; ".join(self._grown(self.baseline))
        return False, growth, f"{what}, at most {limit:.1%} wanted; {told}"

    def _grown(self, before: Figures) -> Iterator[str]:
        """Which kinds of segments, methods and tensors."""
        now = self.now
        segments = grown(before["segments"], now["segments"])
        methods = grown(method_bytes(before), method_bytes(now))
        # A baseline names the largest tensors only, so a smaller one may not be new.
        least = min(sizes_of(before["tensors"]).values(), default=math.inf)
        tensors = [
            change
            for change in grown(sizes_of(before["tensors"]), sizes_of(now["tensors"]))
            if change.before is not None or change.after > least
        ]
        for what, changes in (("grew", segments), ("methods", methods), ("tensors", tensors)):
            if changes:
                yield f"{what}: {_listed(_grew(change) for change in changes)}"

    def _no_baseline(self) -> str:
        return f"no baseline; `doit baseline {self.package}` accepts the present figures"

    # Of a method

    def _nodes(self, method: str, limit: float) -> _Outcome:
        return self._delegated(method, limit, share(self.now["methods"][method]), "nodes")

    def _operators(self, method: str, limit: float) -> _Outcome:
        found = share_of_operators(self.now["methods"][method])
        return self._delegated(method, limit, found, "operators")

    def _delegated(self, method: str, limit: float, found: float, noun: str) -> _Outcome:
        if found >= limit:
            return True, found, ""
        left = ", ".join(f"{n} x{c}" for n, c in self.now["methods"][method]["left"].items())
        what = f"{found:.1%} of {noun} delegated, at least {limit:.1%} wanted"
        return False, found, f"{what}; left to portable kernels: {left}{self._since(method)}"

    def _since(self, method: str) -> str:
        """What is left to portable kernels now that was not in the baseline."""
        before = self._before(method)
        newly = self._newly_left(method, before) if before else []
        return f"; newly left since the baseline: {_listed(newly)}" if newly else ""

    def _newly_left(self, method: str, before: MethodFigures) -> list[str]:
        changes = grown(before["left"], self.now["methods"][method]["left"])
        return [_left(change) + self._why(method, change.what) for change in changes]

    def _why(self, method: str, operator: str) -> str:
        return why_left(self.facts[method]["delegation"], operator)

    def _portable(self, method: str, allowed: Iterable[str]) -> _Outcome:
        patterns = [pattern.removesuffix(".default") for pattern in allowed]
        left = {
            name: calls
            for name, calls in self.now["methods"][method]["left"].items()
            if not any(fnmatchcase(name, pattern) for pattern in patterns)
        }
        if not left:
            return True, 0, ""
        told = ", ".join(f"{n} x{c}{self._why(method, n)}" for n, c in left.items())
        also = f"only {', '.join(patterns)} may be" if patterns else "none may be"
        what = f"left to portable kernels, where {also}: {told}"
        return False, sum(left.values()), what + self._since(method)

    def _memory(self, method: str, limit: int) -> _Outcome:
        planned = self.now["methods"][method]["planned_memory"]
        if planned is None:
            what = "its planned memory is not known, since there is no contents.json"
            return False, None, f"{what}; `doit -a lower:{self.package}` makes it"
        if planned <= limit:
            return True, planned, ""
        what = f"plans {planned} bytes of memory, at most {limit} wanted"
        arenas = [a for a in self.arenas[method]["planned_memory"] if a["size"]]
        if len(arenas) > 1:
            what += "; " + ", ".join(f"arena {a['arena']}: {a['size']}" for a in arenas)
        before = self._before(method)
        known = before["planned_memory"] if before else None
        return False, planned, what + (f"; {known} in the baseline" if known is not None else "")

    def _latency(self, method: str, limit: float) -> _Outcome:
        proved = self.proved.get(method, {})
        if proved.get("not_run"):
            return True, None, _unchecked("max_latency_ratio", proved)
        latency = proved.get("latency")
        if not latency:
            return False, None, "its latency was not measured, and max_latency_ratio limits it"
        ratio = latency["ratio"]
        if ratio <= limit:
            return True, ratio, ""
        ours, source = latency["steady_ms"], latency["source_ms"]
        times = f"{_milliseconds(ours)} against {_milliseconds(source)}"
        what = f"takes {ratio:.2f} times as long as its source ({times})"
        return False, ratio, f"{what}, at most {limit:g} times wanted"

    # Against the baseline

    def _before(self, method: str) -> MethodFigures | None:
        return self.baseline["methods"].get(method) if self.baseline is not None else None

    def _delegation_drop(self, method: str, limit: float) -> _Outcome:
        before = self._before(method)
        if before is None:
            return False, None, self._not_in_baseline(method)
        here, there = share(self.now["methods"][method]), share(before)
        drop = there - here
        if drop <= limit + 1e-9:  # 0.9 - 0.85 is more than 0.05
            return True, drop, ""
        what = f"{here:.1%} of nodes delegated, {there:.1%} in the baseline: {drop:.1%} less"
        newly = _listed(self._newly_left(method, before))
        newly = f"; newly left to portable kernels: {newly}" if newly else ""
        return False, drop, f"{what}, at most {limit:.1%} wanted{newly}"

    def _sqnr_drop(self, method: str, limit: float) -> _Outcome:
        proved = self.proved.get(method, {})
        if proved.get("not_run"):
            return True, None, _unchecked("max_sqnr_drop", proved)
        before = self._before(method)
        if before is None:
            return False, None, self._not_in_baseline(method)
        here, there = self.now["methods"][method]["sqnr_db"], before["sqnr_db"]
        if here is None:
            return False, None, "its SQNR was not measured, and max_sqnr_drop limits its fall"
        if there is None:
            return False, None, f"no SQNR in the baseline; `doit baseline {self.package}`"
        if len(here) != len(there):
            what = f"has {len(here)} outputs, {len(there)} in the baseline"
            return False, None, f"{what}; `doit baseline {self.package}` accepts that"
        names = output_names(self.facts[method].get("signature", {}), len(here))
        falls = [
            (was - now, name, was, now)
            for name, was, now in zip(names, there, here, strict=True)
            if was is not None and now is not None
        ]
        worst = max((fall for fall, *_ in falls), default=0.0)
        told = [
            f"{name} from {was:g} dB to {now:g} dB, {fall:.1f} dB less"
            for fall, name, was, now in falls
            if fall > limit + 1e-9
        ]
        if not told:
            return True, worst, ""
        what = f"SQNR fell since the baseline: {_listed(told)}; at most {limit:g} dB wanted"
        return False, worst, what

    def _not_in_baseline(self, method: str) -> str:
        if self.baseline is None:
            return self._no_baseline()
        return f"not in the baseline; `doit baseline {self.package}` accepts its figures"


# Whether it holds, the figure, and what is to be said.
_Outcome = tuple[bool, float | None, str]


def _unchecked(gate: str, proved: Json) -> str:
    return f"{gate} was not checked, since it did not run: {proved['not_run']}"


def _grew(change: Change) -> str:
    if change.before is None:
        return f"{change.what} is new, {change.after} bytes"
    return f"{change.what} by {change.growth} bytes to {change.after}"


def _left(change: Change) -> str:
    return f"{change.what} x{change.after}" + (f" (was x{change.before})" if change.before else "")


def _listed(words: Iterable[str]) -> str:
    words = list(words)
    more = [f"and {len(words) - _MOST} more"] if len(words) > _MOST else []
    return ", ".join(words[:_MOST] + more)


def _milliseconds(spread: Json) -> str:
    return f"{spread['median']:.3g} ms"
