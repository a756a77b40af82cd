"""Finds where the operators of each module of a model run.

The manifest gives places of nodes in the lowered program. Validation has loaded this program, whose
nodes know their modules and lines. A package's bytes and keys contain neither.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from torch.fx import Node

from pipeline.features.modules.names import FOLDED, KERNELS
from pipeline.program.graphs import iter_nodes
from pipeline.program.module_paths import innermost_module
from pipeline.program.operators import node_label
from pipeline.program.source_lines import source_line
from pipeline.run.prove.measuring import Measurement, Measuring
from pipeline.run.prove.subject import LoweredMethod, Subject
from pipeline.store.errors import PipelineError

Json = Mapping[str, Any]
_MOST_CALLS = 4_000  # groups of equal calls per method, some 100 bytes each


class ModuleMeasuring(Measuring):
    """Adds the operator calls of each module to the record of their method."""

    def after_run(self, measurement: Measurement) -> None:
        with self.stages.stage("modules"):
            for method in measurement.subject.programs:
                if not measurement.subject.validates(method):
                    continue
                facts = measurement.method_facts.setdefault(method, {})
                facts["modules"] = _list_calls(measurement.subject, method)


def _list_calls(subject: Subject, method: str) -> list[dict[str, Any]]:
    """Return the operator calls of a method, in the order of its graph.

    Each has its `module`, its `operator`, the backend or kernels that it `runs_on`, its `line` of
    the source, and the `count` of equal calls. Empty if the lowered method can't be loaded.
    """
    try:
        lowered = subject.load_lowered(method)
    except PipelineError:
        return []
    runners = _find_runners(subject.methods[method], lowered)
    source = list(iter_nodes(subject.programs[method]))
    root = subject.workspace.root
    counts: Counter[tuple[str, str, str, str]] = Counter()
    for place, node in enumerate(iter_nodes(lowered.program)):
        if node.op != "call_function":
            continue
        origin = _find_origin(place, node, source, lowered)
        line = str(source_line(origin, root) or "")
        runner = runners.get(place, FOLDED)
        counts[innermost_module(origin), node_label(node), runner, line] += 1
    calls: list[dict[str, Any]] = []
    for (module, operator, runner, line), count in islice(counts.items(), _MOST_CALLS):
        call = {"module": module, "operator": operator, "runs_on": runner}
        calls.append({**call, "line": line, "count": count})
    return calls


def _find_origin(
    place: int, node: Node, source: Sequence[Node], lowered: LoweredMethod
) -> Node:
    """Return the float program's node that a node comes from.

    A node that a quantizer added is returned itself.
    """
    if lowered.origins is not None and place in lowered.origins:
        return source[lowered.origins[place]]
    return node


def _find_runners(facts: Json, lowered: LoweredMethod) -> dict[int, str]:
    """Return, by place, the backend or kernels that run each node of a method.

    Delegates are in the order of the graph's regions. If there are more or fewer delegates than
    regions, they can't be matched, and every delegate gets the names of all backends.
    """
    runners = dict.fromkeys(lowered.instructions.node_places.values(), KERNELS)
    delegates = lowered.instructions.delegates
    regions = facts["delegation"].get("segments") or ()
    backends = [region["backend"] for region in regions if region["backend"]]
    if len(backends) != len(delegates):
        names = " + ".join(sorted(facts["delegation"]["partitions"]))
        backends = [names] * len(delegates)
    for backend, delegate in zip(backends, delegates, strict=True):
        for place in delegate.places:
            runners[place] = backend
    return runners
