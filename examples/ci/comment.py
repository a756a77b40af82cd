"""Writes a file as this pipeline's only comment on a pull request or merge request.

    python comment.py build/diff.md [NAME]

The comment begins with a hidden marker. If the same author already has a comment with that marker,
it is edited; otherwise a new comment is written. With NAME, each of several workspaces in one
repository has its own comment. The script uses only the standard library and these variables:

- GitHub: GITHUB_API_URL and GITHUB_REPOSITORY; also NUMBER, of the pull request, and GITHUB_TOKEN.
- GitLab: CI_API_V4_URL, CI_PROJECT_ID, CI_MERGE_REQUEST_IID; also NOTES_TOKEN, an access token.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any, NamedTuple
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

MOST = 60_000  # characters; GitHub accepts 65,536
PAGE = 100  # comments, the maximum per request on both services
SECONDS = 30


class Service(NamedTuple):
    """How a service lists, writes and edits comments.

    `author` is the key and the value that identify this pipeline's comments.
    """

    comments: str
    comment: str
    edit: str
    headers: dict[str, str]
    author: tuple[str, object]

    def ask(self, method: str, address: str, body: str | None = None) -> Any:
        """Send a request and return the answer as JSON. Raises OSError."""
        data = None if body is None else json.dumps({"body": body}).encode()
        headers = {"Accept": "application/json", "Content-Type": "application/json", **self.headers}
        request = Request(address, data, headers, method=method)
        with urlopen(request, timeout=SECONDS) as answer:
            return json.load(answer)

    def find(self, marker: str) -> object:
        """Return the id of the comment that begins with a marker, or None."""
        key, value = self.author
        number = 1
        while True:
            page = self.ask("GET", f"{self.comments}?per_page={PAGE}&page={number}")
            for comment in page:
                author = comment.get("user") or comment.get("author") or {}
                if author.get(key) == value and comment["body"].startswith(marker):
                    return comment["id"]
            if len(page) < PAGE:
                return None
            number += 1


def github() -> Service:
    api = f"{os.environ['GITHUB_API_URL']}/repos/{os.environ['GITHUB_REPOSITORY']}/issues"
    author = os.environ.get("COMMENT_AUTHOR", "github-actions[bot]")
    return Service(
        comments=f"{api}/{os.environ['NUMBER']}/comments",
        comment=f"{api}/comments",
        edit="PATCH",
        headers={"Authorization": f"Bearer {os.environ['GITHUB_TOKEN']}"},
        author=("login", author),
    )


def gitlab() -> Service:
    api, project = os.environ["CI_API_V4_URL"], os.environ["CI_PROJECT_ID"]
    notes = f"{api}/projects/{project}/merge_requests/{os.environ['CI_MERGE_REQUEST_IID']}/notes"
    headers = {"PRIVATE-TOKEN": os.environ["NOTES_TOKEN"]}
    service = Service(notes, notes, "PUT", headers, ("id", None))
    return service._replace(author=("id", service.ask("GET", f"{api}/user")["id"]))


def shorten(text: str) -> str:
    """Return a text, cut after a whole line if it is too long for a comment."""
    if len(text) <= MOST:
        return text
    lines, size = [], 0
    for line in text.splitlines():
        size += len(line) + 1
        if size > MOST:
            break
        lines.append(line)
    return "\n".join([*lines, "", "The rest is in the artifact."])


def main(path: str, name: str = "packages") -> int:
    if not Path(path).is_file():
        print(f"{path} was not written, so there is nothing to comment")
        return 0
    marker = f"<!-- pte-pipeline: {name} -->"
    body = f"{marker}\n{shorten(Path(path).read_text(encoding='utf-8'))}"
    try:
        service = gitlab() if "GITLAB_CI" in os.environ else github()
        comment = service.find(marker)
        if comment is None:
            service.ask("POST", service.comments, body)
        else:
            service.ask(service.edit, f"{service.comment}/{comment}", body)
    except KeyError as error:
        print(f"comment.py: the variable {error.args[0]} is not set", file=sys.stderr)
        return 1
    except HTTPError as error:
        print(f"comment.py: {error.url} answers {error.code} {error.reason}", file=sys.stderr)
        return 1
    except (URLError, OSError, ValueError) as error:
        print(f"comment.py: {error}", file=sys.stderr)
        return 1
    print("wrote the comment" if comment is None else "edited the comment")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
