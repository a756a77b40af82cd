"""The drop in the share of a method's nodes that delegates run, since the baseline."""

from __future__ import annotations

from pipeline.config.fields import Portion
from pipeline.features.gates.figures import share_of
from pipeline.features.gates.gate import Gate, GateSubject, Measured
from pipeline.features.gates.wording import describe_newly_left
from pipeline.report.formatting import percent
from pipeline.report.records import name_kernels


def measure(method: GateSubject, limit: float) -> Measured:
    share = share_of(method.now)
    accepted_share = share_of(method.before)
    drop = accepted_share - share
    sentence = f"{percent(share)} of nodes delegated, {percent(accepted_share)} in the baseline"
    sentence += f": {percent(drop)} less"
    kernels = name_kernels(method.now["left"])
    newly = describe_newly_left(method, f"to {kernels}")
    return drop, f"{sentence}, at most {percent(limit)} allowed{newly}"


GATE = Gate(
    name="max_delegation_drop",
    holds_for=("method",),
    values=Portion,
    unit="share",
    text=(
        "The maximum drop in a method's share of delegated nodes since the baseline: 0.05 or 5% "
        "allows a drop from 90 % to 85 %."
    ),
    example="5%",
    measure=measure,
    needs_baseline=True,
)
