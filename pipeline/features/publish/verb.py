"""`doit publish`: uploads packages with their model cards, then the index that names them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pipeline.cli.verbs import known_packages
from pipeline.features.publish.index import read_index, write_index
from pipeline.features.publish.release import (
    Content,
    describe_release,
    find_contents,
)
from pipeline.features.publish.upload import (
    INDEX,
    explaining,
    find_missing,
    open_address,
    send,
    send_record,
)
from pipeline.plan.plan import Plan
from pipeline.store.errors import PipelineError, plural
from pipeline.store.sizes import human_size

Json = Mapping[str, Any]


def run(
    plan: Plan, words: Sequence[str], to: str = "", dry_run: bool = False
) -> Iterator[str]:
    """Publish packages, by default all, and yield a line for each.

    Raises:
        PipelineError: packages must not be published (all are reported at once, before anything is
            sent), or the address can't be used.
    """
    if not to:
        raise PipelineError(
            "name an address: --to s3://bucket/models, or file:///srv/models"
        )
    releases = _make_releases(plan, known_packages(plan, words))
    files = open_address(to, plan.workspace.root)
    yield from publish_releases(files, releases, dry_run)


def publish_releases(
    files: Any, releases: Sequence[tuple[Json, Mapping[str, Content]]], dry_run: bool
) -> Iterator[str]:
    """Send releases, each with the contents of its files, then write the index; yield a line each.

    Raises PipelineError with a line that explains what the address refused.
    """
    with explaining(files):
        read_index(files)  # fails on a foreign index before anything is sent
        for release, contents in releases:
            yield _publish(files, release, contents, dry_run)
        if dry_run:
            return
        with explaining(files, INDEX, "all releases are there"):
            write_index(files, [release for release, _ in releases])
        files.sweep()  # removes files that killed publishers left half written
    count = plural(len(releases), "release")
    yield f"{files.shown.rstrip('/')}/{INDEX}: lists {count} from this run"


def _make_releases(
    plan: Plan, packages: Sequence[str]
) -> list[tuple[Json, dict[str, Content]]]:
    """Return the releases of packages with the contents of their files.

    Raises PipelineError with a line for each package that must not be published.
    """
    releases = []
    refused = list[str]()
    for package in packages:
        try:
            contents = find_contents(plan, package)
            releases.append((describe_release(plan, package, contents), contents))
        except PipelineError as error:
            refused += error.lines
    if refused:
        raise PipelineError(*refused)
    return releases


def _publish(
    files: Any, release: Json, contents: Mapping[str, Content], dry_run: bool
) -> str:
    """Send the missing files of a release, and return a summary."""
    missing = find_missing(files, release)
    sizes = {file["name"]: file["size"] for file in release["files"]}
    amount = human_size(sum(sizes[name] for name in missing))
    words = f"{plural(len(missing), 'file')}, {amount}"
    if dry_run:
        return (
            f"{release['path']}: would send {words}" if missing else _unchanged(release)
        )
    for number, name in enumerate(missing):
        sent = f"{number} of {len(missing)} files were sent"
        with explaining(files, f"{release['path']}/{name} ({sent})"):
            send(files, release, name, contents[name])
    send_record(files, release)
    return f"{release['path']}: sent {words}" if missing else _unchanged(release)


def _unchanged(release: Json) -> str:
    return f"{release['path']}: already uploaded"
