"""Downloads a model's files from a hub into huggingface_hub's cache.

The cache holds each file once for all workspaces and programs, under the digest that the hub names,
and snapshots of a commit as links to these files. Here each file is hashed and compared with that
digest before use. Files in the cache are not requested again. huggingface_hub takes its settings
from the environment: HF_ENDPOINT, HF_HOME, HF_HUB_OFFLINE, HF_TOKEN.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pipeline.store.errors import SourceError

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_CONFIG = "config.json"
_OPTIONAL = ("generation_config.json",)
# In order of preference: a single file, or several files with an index.
_WEIGHTS = (
    ("model.safetensors", "model-*.safetensors"),
    ("pytorch_model.bin", "pytorch_model-*.bin"),
)
_BLOCK = 1 << 20
_REFUSED = (401, 403)
# For each file, by path: the SHA-256 of its content (64 digits), or its SHA-1 as a git blob.
Digests = Mapping[str, str]


def is_on_hub(workspace: Path, model: str) -> bool:
    """Return whether a name is that of a hub's model, and not of a folder of the workspace.

    Such names look like `gpt2` or `openai/whisper-tiny`.
    """
    if (workspace / model).exists():
        return False
    return _NAME.fullmatch(model) is not None and ".." not in model


def is_commit(revision: str) -> bool:
    """Return whether a revision is the full hash of a commit, which can't move."""
    return _COMMIT.fullmatch(revision) is not None


def find_snapshot(name: str, commit: str) -> Path | None:
    """Return the folder in the cache that holds a model at a commit, or None.

    Makes no request to a hub.
    """
    hub: Any = _import_hub()
    config = hub.try_to_load_from_cache(name, _CONFIG, revision=commit)
    return Path(config).parent if isinstance(config, str) else None


def resolve_commit(name: str, revision: str) -> str:
    """Ask the hub for the commit of a model's branch or tag. Raises SourceError."""
    hub: Any = _import_hub()
    with _explaining(name, revision):
        commit: str = hub.HfApi().model_info(name, revision=revision).sha
    return commit


def download(
    name: str, commit: str, digests: Digests | None, trusts_code: bool
) -> dict[str, str]:
    """Download the files that `from_pretrained` reads, unless they are in the cache.

    Args:
        digests: the result of an earlier call; with it, no hub is asked for digests.
        trusts_code: whether Python files are needed too.

    Returns:
        The hub's digests of all files of the model at this commit. If the hub can't be reached and
        the cache has the files, {}: they are compared with the digests in the cache.

    Raises:
        SourceError: the hub can't be reached, lacks or refuses the model, or sends content that
            differs from its digest.
    """
    hub: Any = _import_hub()
    hub.utils.disable_progress_bars()
    cached: Digests = {}
    with _explaining(name, commit):
        try:
            digests = digests or _list_files(hub, name, commit)
        except (OSError, hub.errors.HTTPError):
            if not (cached := _list_cached(name, commit)):
                raise
        listing = cached or digests or {}
        for file in _choose_files(name, commit, listing, trusts_code):
            path = Path(hub.hf_hub_download(name, file, revision=commit))
            _check_content(name, commit, file, path, listing[file])
    return {} if cached else dict(listing)


def _list_files(hub: Any, name: str, commit: str) -> Digests:
    """Return the hub's digests of the files at the top of a model."""
    listing = {}
    for entry in hub.HfApi().list_repo_tree(name, revision=commit):
        if isinstance(entry, hub.hf_api.RepoFile):
            lfs = entry.lfs
            listing[entry.path] = lfs.sha256 if lfs else entry.blob_id
    return listing


def _list_cached(name: str, commit: str) -> Digests:
    """Return the digests of a model's files in the cache, or {} if it lacks the weights."""
    folder = find_snapshot(name, commit)
    if folder is None:
        return {}
    # Files of a snapshot are links to blobs, which are named by their digests.
    listing = {path.name: path.resolve().name for path in sorted(folder.iterdir())}
    return listing if _choose_weights(listing) else {}


def _choose_files(
    name: str, commit: str, listing: Collection[str], trusts_code: bool
) -> Iterator[str]:
    """Yield the names of the files that `from_pretrained` reads.

    Raises SourceError if there is no config, or no weights that it can read.
    """
    files = [_CONFIG, *(file for file in _OPTIONAL if file in listing)]
    if trusts_code:
        files += [file for file in listing if file.endswith(".py")]
    weights = _choose_weights(listing)
    if _CONFIG not in listing or not weights:
        missing = "weights of transformers" if _CONFIG in listing else _CONFIG
        raise SourceError(f"{name}: has no {missing} at commit {commit}")
    yield from (*files, *weights)


def _choose_weights(listing: Collection[str]) -> list[str]:
    for single, several in _WEIGHTS:
        index = f"{single}.index.json"
        if single in listing:
            return [single]
        if index in listing:
            return [index, *(file for file in listing if Path(file).match(several))]
    return []


def _check_content(
    name: str, commit: str, file: str, path: Path, expected: str
) -> None:
    """Compare a file with its digest, and remove it if it differs. Raises SourceError."""
    if path.parent.name != commit:
        path.unlink()
        raise SourceError(
            f"{name}: asked for commit {commit}, the hub sent {file} of {path.parent.name}"
        )
    content = _hash(path, expected)
    if content != expected:
        # Remove both the link and its blob.
        blob = path.resolve()
        path.unlink()
        blob.unlink(missing_ok=True)
        raise SourceError(
            f"{name}: {file} has the digest {content}, the hub lists {expected}; it was removed: "
            "run again to download it"
        )


def _hash(path: Path, like: str) -> str:
    """Return the digest of a file, of the same kind as `like`."""
    if len(like) == 64:
        digest = hashlib.sha256()
    else:  # a git blob
        digest = hashlib.sha1(usedforsecurity=False)
        # git hashes a header with the content.
        digest.update(b"blob %d\0" % path.stat().st_size)
    with path.open("rb") as stream:
        while block := stream.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


@contextmanager
def _explaining(name: str, revision: str) -> Iterator[None]:
    """Turn errors of the connection to the hub into one-line errors."""
    from huggingface_hub import errors

    try:
        yield
    except errors.GatedRepoError as error:
        raise SourceError(
            f"{name}: gated; accept its terms on {_endpoint()}/{name}, then set HF_TOKEN or run "
            "`hf auth login`"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise SourceError(
            f"{name}: the hub has no revision {revision} of this model; with `revision: main`, "
            "the error names a commit"
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise SourceError(
            f"{name}: no folder of this name, and {_endpoint()} has no such model or hides it; "
            "correct the name, or set HF_TOKEN for a private one"
        ) from error
    except errors.HfHubHTTPError as error:
        status = error.response.status_code
        remedy = "set another HF_TOKEN" if status in _REFUSED else "run again later"
        raise SourceError(
            f"{name}: {_endpoint()} answered with status {status}; {remedy}"
        ) from error
    except (ConnectionError, errors.LocalEntryNotFoundError) as error:
        raise SourceError(_describe_unreachable(name, revision)) from error
    except (OSError, errors.HTTPError) as error:
        # From httpx or httpx2, depending on the release of huggingface_hub.
        if type(error).__name__ in ("ConnectError", "ConnectTimeout"):
            raise SourceError(_describe_unreachable(name, revision)) from error
        raise SourceError(
            f"{name}: the connection to {_endpoint()} ended early ({error}), and nothing of that "
            "file was kept; run again"
        ) from error


def _describe_unreachable(name: str, revision: str) -> str:
    from huggingface_hub import constants

    why = f"{_endpoint()} can't be reached"
    if constants.is_offline_mode():
        why = "HF_HUB_OFFLINE is set"
    return (
        f"{name}: incomplete in {constants.HF_HUB_CACHE}, and {why}; connect, or copy what "
        f"`hf download {name} --revision {revision}` makes there on another machine"
    )


def _endpoint() -> str:
    from huggingface_hub import constants

    return str(constants.ENDPOINT)


def _import_hub() -> Any:
    """Import huggingface_hub, which transformers installs. Raises SourceError if it is missing."""
    if find_spec("huggingface_hub") is None:
        raise SourceError(
            "huggingface_hub is not installed; `pip install transformers` installs it"
        )
    import huggingface_hub.errors
    import huggingface_hub.hf_api
    import huggingface_hub.utils

    return huggingface_hub
