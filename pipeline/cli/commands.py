"""What the tasks `plan`, `explain` and `cache` print. They are tasks rather than commands of doit,
since a command would be there in every doit project beside which this package is installed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from doit.exceptions import TaskFailed

from pipeline.cli.columns import columns
from pipeline.plan.plan import Plan
from pipeline.store.errors import ConfigErrors, PipelineError, Problem, did_you_mean
from pipeline.store.maintenance import LEVELS, Usage, evict, statistics, verify
from pipeline.store.sizes import human_size
from pipeline.store.store import Store


def command(
    name: str,
    doc: str,
    run: Callable[..., Iterable[str]],
    flags: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Any]:
    """The doit task of a command that takes words and prints lines; it is never up to date. Each
    flag (`--name`, with its help) is a keyword of `run`, and may stand before or after words."""

    def action(words: list[str], **given: bool) -> TaskFailed | None:
        said = {flag: given[flag] or f"--{flag}" in words for flag in flags}
        rest = [word for word in words if word not in {f"--{flag}" for flag in flags}]
        try:
            for line in run(rest, **said):
                print(line, flush=True)
        except PipelineError as error:
            return TaskFailed(f"{name}: {error}")
        except BrokenPipeError:  # whoever reads has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return None

    return {
        "basename": name,
        "doc": doc,
        "actions": [action],
        "params": [
            {"name": flag, "long": flag, "type": bool, "default": False, "help": text}
            for flag, text in flags.items()
        ],
        "pos_arg": "words",
        "verbosity": 2,
        "meta": {"command": True},
    }


def plan_command(plan: Plan, words: Sequence[str], resolved: bool = False) -> Iterator[str]:
    """Raises PipelineError."""
    from pipeline.cli.explain import preview  # which a run does without

    for package in words:
        if package not in plan.packages:
            raise PipelineError(f"no package '{package}'; {did_you_mean(package, plan.packages)}")
    yield from _resolved(plan, words or plan.packages) if resolved else preview(plan, words)


def _resolved(plan: Plan, packages: Sequence[str]) -> Iterator[str]:
    """What can be shown is shown, and then what is wrong. Raises PipelineError."""
    from pipeline.config.resolved import (
        resolved_view,  # pydantic, which the other commands do without
    )

    problems: list[Problem] = []
    blank = False
    for package in packages:
        found = plan.configs.problems(package)
        problems += found
        if not found:
            yield from [""] if blank else []
            blank = True
            yield from resolved_view(plan.config(package), plan.configs.document(package))
    if problems:
        raise ConfigErrors(problems)


def explain_command(plan: Plan, words: Sequence[str]) -> Iterator[str]:
    """Raises PipelineError."""
    from pipeline.cli.explain import explain

    if not words:
        raise PipelineError("say of what: doit explain <package>[/<method>] ...")
    for target in words:
        yield from explain(plan, target)


def baseline_command(plan: Plan, words: Sequence[str]) -> Iterator[str]:
    """Raises PipelineError."""
    from pipeline.cli.verbs.baseline import accept  # pydantic and YAML, which a run does without

    yield from accept(plan, words)


def diff_command(plan: Plan, words: Sequence[str], markdown: bool = False) -> Iterator[str]:
    """Raises PipelineError."""
    from pipeline.cli.verbs.diff import diff  # pydantic and YAML, which a run does without

    yield from diff(plan, words, markdown)


def backends_command(words: Sequence[str]) -> Iterator[str]:
    """Raises PipelineError."""
    from pipeline.cli.verbs.backends import list_backends, tell_backend

    if not words:
        yield from list_backends()
    for number, name in enumerate(words):
        if number:
            yield ""
        yield from tell_backend(name)


def report_command(plan: Plan, words: Sequence[str]) -> Iterator[str]:
    """Renders the reports of packages again, and those over all. Raises PipelineError."""
    from pipeline.report.write import write_overview, write_reports  # templates and charts

    for package in words:
        if package not in plan.packages:
            raise PipelineError(f"no package '{package}'; {did_you_mean(package, plan.packages)}")
    root = plan.workspace.root
    try:
        for package in words or plan.packages:
            written = write_reports(plan.workspace, package)
            if words and not written:
                yield f"{package}: not validated yet; `doit validate:{package}` does"
            yield from (str(path.relative_to(root)) for path in written)
        yield from (str(p.relative_to(root)) for p in write_overview(plan.workspace, plan.packages))
    except OSError as error:
        raise PipelineError(f"{error.filename}: {error.strerror}") from error


def cache_command(store: Store, words: Sequence[str]) -> Iterator[str]:
    """Raises PipelineError."""
    verbs = {"stats": _stats, "verify": _verify, "gc": _gc}
    word = words[0] if words else "stats"
    if word not in verbs or len(words) > 1:
        raise PipelineError(f"no '{' '.join(words)}'; {did_you_mean(word, verbs)}")
    return verbs[word](store)


def _stats(store: Store) -> Iterator[str]:
    stats = statistics(store)
    cap = f" of at most {human_size(store.cap)}" if store.cap is not None else ""
    yield f"store {store.root}: {human_size(stats.size)}{cap}"
    yield f"  {stats.blobs} blobs, {human_size(stats.blob_bytes)}"
    kinds = ", ".join(f"{number} {kind}" for kind, number in sorted(stats.results.items()))
    number = sum(stats.results.values())
    yield f"  {number} results, {human_size(stats.result_bytes)}" + (f": {kinds}" if kinds else "")
    if stats.usage:
        yield ""
        yield from columns(_usage(stats.usage), right=range(2, 6))
    if store.remote is not None:
        yield ""
        yield f"remote {store.remote.settings.url}"
        store.remote.check()


_NAMES = {1: "1 source", 2: "2 program", 3: "3 partition"}


def _usage(usage: Mapping[str, Usage]) -> Iterator[tuple[str, ...]]:
    yield "level", "action", "hits", "misses", "time saved", "time spent"
    for kind in sorted(usage, key=lambda kind: (LEVELS.get(kind, 0), kind)):
        each = usage[kind]
        level = _NAMES.get(LEVELS.get(kind, 0), "")
        saved, spent = _duration(each.saved), _duration(each.spent)
        yield level, kind, str(each.hits), str(each.misses), saved, spent


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def _verify(store: Store) -> Iterator[str]:
    found = verify(store)
    for name in found.bad:
        yield f"bad: {name}" + ("; it could not be dropped" if name in found.stuck else "; dropped")
    yield f"{found.files} files, {human_size(found.size)}: " + (
        f"{len(found.bad)} bad" if found.bad else "all good"
    )
    if found.bad:
        raise PipelineError("what was dropped is built again when it is needed")


def _gc(store: Store) -> Iterator[str]:
    if store.remote is not None and (swept := store.remote.sweep()):
        yield f"removed {swept} half-written files from the remote"
    if store.cap is None:
        return
    done = evict(store, store.cap)
    if done.busy:
        yield "another eviction is under way"
        return
    yield (
        f"evicted {done.results} results and {done.blobs} blobs, {human_size(done.size)}; "
        f"{human_size(done.left)} left of at most {human_size(store.cap)}"
    )
    if done.left > store.cap and done.in_use:
        yield f"{human_size(done.in_use)} are in use by builds that are under way"
