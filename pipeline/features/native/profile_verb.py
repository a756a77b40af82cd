"""`doit profile`: shows where a method spends its time on a device, by operator and source line."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.cli.columns import columns, cut_middle
from pipeline.cli.grammar import find_targets
from pipeline.cli.progress import terminal_width
from pipeline.features.native.emulator import explain_unknown_cpu
from pipeline.features.native.planning import list_traceable
from pipeline.features.native.profile_record import describe_profile, keep_profile
from pipeline.features.native.profile_rows import ProfileRow
from pipeline.features.native.setups import EMULATED, NATIVE, find_setup, is_native
from pipeline.features.native.target_devices import find_devices
from pipeline.plan.plan import Plan
from pipeline.plan.status import link_status
from pipeline.run.action_log import logging_to
from pipeline.store.errors import PipelineError, did_you_mean, listed
from pipeline.store.files import make_folder, record_bytes, write_atomically

if TYPE_CHECKING:  # importing it takes seconds, which a wrong name must not cost
    from pipeline.features.native.profile import Profile

_EXAMPLE = "doit profile vision/classify"
_REPEATS, _MOST_REPEATS = 20, 1000
_MOST_ROWS = 25
_DIGITS = 3  # decimals of milliseconds; delegates measure in microseconds
_RIGHT = (2, 3, 4)
_GAP = 2  # between columns
_LEAST_NAME = 12
_Row = tuple[str, ...]
_UNSAFE = re.compile(r"[^\w.=+-]")


def run(
    plan: Plan, words: Sequence[str], on: str = "", repeats: str = ""
) -> Iterator[str]:
    """Profile a method on a device, and yield the lines of a table of its operators, longest first.

    Args:
        on: the device; by default `native`, or the first of `validate.devices` if that list lacks
            it.
        repeats: the number of recorded calls, after one warm-up call; by default 20.

    Raises:
        PipelineError: the method or the device doesn't exist, the package is not built, or the
            device lacks something that the method needs.
    """
    package, method = _find_method(plan, words)
    count = _parse_repeats(repeats)
    plan.check(package)
    status = link_status(plan, package)
    action = plan.validate(package) if status.current else None
    if action is None:
        raise PipelineError(
            f"{package}: its build is out of date ({status.reason}); run `doit lower "
            f"{package}` first"
        )
    root = plan.workspace.root
    device = _choose_device(on, find_devices(action.inputs.config, root), root)
    if problem := find_setup(device, root).problem:
        raise PipelineError(f"{device}: {problem}")
    make_folder(plan.workspace.logs, plan.workspace.build)
    with logging_to(plan.workspace.logs / "profile.log"):  # libraries warn on loading
        from pipeline.features.native.profile import profile_method

    profile = profile_method(action, plan.workspace, method, device, count)
    milliseconds = f"{profile.milliseconds:.{_DIGITS}f}"
    yield f"{package}/{method} on {device}: {milliseconds} ms a call, the median of {count}"
    yield from describe_rows(profile.rows, terminal_width(sys.stdout))
    paths = _write(plan, package, f"{method}.{_UNSAFE.sub('-', device)}", profile)
    yield f"written: {', '.join(paths)}"
    record = describe_profile(device, count, profile.milliseconds, profile.rows)
    try:
        if keep_profile(plan.workspace, package, method, record):
            yield f"shown in: {plan.workspace.build.name}/{package}/report.html"
    except OSError as error:
        raise PipelineError(f"{error.filename}: {error.strerror}") from error


def _find_method(plan: Plan, words: Sequence[str]) -> tuple[str, str]:
    """Return the package and the method that `words` name.

    Raises PipelineError unless they name exactly one method.
    """
    if len(words) != 1:
        raise PipelineError(f"name one method, such as {_EXAMPLE}")
    targets = find_targets(plan, words)
    pairs = []
    for package, methods in targets:
        plan.check(package)
        if not methods:
            methods = tuple(name for unit in plan.units(package) for name in unit)
        pairs += [(package, method) for method in methods]
    if len(pairs) != 1:
        known = listed(["/".join(pair) for pair in pairs], 10)
        raise PipelineError(f"'{words[0]}' names {known or 'no method'}; name one")
    return pairs[0]


def _parse_repeats(text: str) -> int:
    if not text:
        return _REPEATS
    if not text.isdecimal() or not 1 <= int(text) <= _MOST_REPEATS:
        raise PipelineError(
            f"--repeats takes a whole number from 1 to {_MOST_REPEATS}, not '{text}'"
        )
    return int(text)


def _choose_device(name: str, devices: Sequence[str], root: Path) -> str:
    """Return the device to profile on. Raises PipelineError if the named device records no times.

    Args:
        name: the requested device, or "" for the default.
        devices: the devices of the config and its target.
    """
    if not name:
        traceable = [device for device in devices if is_native(device, root)]
        return NATIVE if NATIVE in traceable else next(iter(traceable), NATIVE)
    if not is_native(name, root):
        hint = did_you_mean(name, list_traceable(root))
        raise PipelineError(f"no device '{name}' records times; {hint}")
    if name.startswith(EMULATED) and (remedy := explain_unknown_cpu(name)):
        raise PipelineError(f"no device '{name}'; {remedy}")
    return name


def describe_rows(
    rows: Sequence[ProfileRow], width: int | None = None
) -> Iterator[str]:
    """Yield the lines of a table of the longest rows, and one line that sums up the others.

    Args:
        width: the columns of the terminal, to which names and source lines are cut.
    """
    table: list[_Row] = [("operator", "backend", "calls", "ms", "share", "source line")]
    shown = rows
    if len(rows) > _MOST_ROWS + 1:  # a line about a single row would save nothing
        shown = rows[:_MOST_ROWS]
    for row in shown:
        milliseconds = f"{row.milliseconds:.{_DIGITS}f}"
        share = _format_share(row.share)
        calls = str(row.calls)
        table.append((row.name, row.backend, calls, milliseconds, share, row.where))
    yield from columns(_fit(table, width), _RIGHT, rule=True)
    others = rows[len(shown) :]
    if others:
        share = _format_share(sum(row.share for row in others))
        yield f"and {len(others)} more rows, {share} in total"


def _fit(table: list[_Row], width: int | None) -> list[_Row]:
    """Cut the first and the last column of a table to fit a width, the wider one first."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    if width is None:
        return table
    excess = sum(widths) + _GAP * (len(widths) - 1) - width
    first, last = widths[0], widths[-1]
    while excess > 0 and max(first, last) > _LEAST_NAME:
        if first > last:
            first -= 1
        else:
            last -= 1
        excess -= 1
    return [
        (cut_middle(name, first), *figures, cut_middle(where, last))
        for name, *figures, where in table
    ]


def _format_share(share: float) -> str:
    return f"{share * 100:.1f} %"


def _write(plan: Plan, package: str, stem: str, profile: Profile) -> list[str]:
    """Write the ETDump and the trace where releases don't pick them up; return their paths."""
    build = plan.workspace.build
    folder = plan.workspace.logs / package / "profile"
    make_folder(folder, build)
    contents = {
        f"{stem}.etdp": profile.etdump,
        f"{stem}.trace.json": record_bytes(profile.trace, sort_keys=False),
    }
    paths = []
    for name, content in contents.items():
        write_atomically(folder / name, content, build)
        paths.append(f"{build.name}/{(folder / name).relative_to(build).as_posix()}")
    return paths
