"""The files of examples/ci/ are valid for GitHub, GitLab and a POSIX shell, and do what the guide
says: results are kept even if a run fails, and a change has a single comment."""

import json
import os
import re
import shutil
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml

from pipeline.cli.commands import VERBS
from pipeline.store.setting_table import variable_of
from pipeline.store.sizes import parse_size
from tests.support.bench import REPOSITORY
from tests.support.setting_variables import find_variables

FOLDER = REPOSITORY / "examples" / "ci"
# check-jsonschema includes their schemas.
GITHUB = ("github-actions.yml", "vendor.github-workflows")
MAC = ("github-actions-macos.yml", "vendor.github-workflows")
GITLAB = ("gitlab-ci.yml", "vendor.gitlab-ci", "--data-transform", "gitlab-ci")
REUSABLE = ("github-reusable.yml", "vendor.github-workflows")
# The file's second document: there is no published schema for the first one, `spec`.
COMPONENT = ("gitlab-component.yml", *GITLAB[1:])


def check(file, schema, *more):
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, *more, file]
    return subprocess.run([str(word) for word in command], capture_output=True, text=True)


def job_of(name):
    document = yaml.safe_load((FOLDER / name).read_text(encoding="utf-8"))
    return document.get("jobs", document)["packages"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "schema", "more"),
    [(n, s, m) for n, s, *m in (GITHUB, MAC, GITLAB, REUSABLE, COMPONENT)],
)
def test_file_keeps_to_its_schema(name, schema, more, tmp_path):
    text = (FOLDER / name).read_text(encoding="utf-8").rpartition("\n---\n")[2]
    (tmp_path / name).write_text(text, encoding="utf-8")
    done = check(tmp_path / name, schema, *more)
    assert done.returncode == 0, done.stdout
    wrong = yaml.safe_load(text)
    job = wrong["jobs"]["packages"] if "jobs" in wrong else wrong["packages"]
    job["services"] = 3
    (tmp_path / name).write_text(yaml.safe_dump(wrong), encoding="utf-8")
    assert check(tmp_path / name, schema, *more).returncode == 1


@pytest.mark.parametrize("name", [GITHUB[0], MAC[0], GITLAB[0]])
def test_file_keeps_the_store_the_history_and_the_reports(name):
    text = (FOLDER / name).read_text(encoding="utf-8")
    assert ".store" in text and "build.sh" in text and "requirements.txt" in text
    assert "fetch-depth: 0" in text or 'GIT_DEPTH: "0"' in text


# The store


@pytest.mark.parametrize(
    ("name", "key"), [(GITHUB[0], "env"), (MAC[0], "env"), (GITLAB[0], "variables")]
)
def test_the_store_has_a_size_of_which_several_fit_in_the_services_cache(name, key):
    settings = job_of(name)[key]
    ours = {variable for variable in settings if variable.startswith("PTE_PIPELINE_")}
    assert ours <= {*find_variables().values(), "PTE_PIPELINE_UNTRUSTED"}
    assert parse_size(settings[variable_of("store_size")]) * 5 <= parse_size("10GB")


@pytest.mark.parametrize("file", [GITHUB[0], MAC[0]])
def test_github_saves_the_store_of_a_red_run_after_eviction(file):
    steps = job_of(file)["steps"]
    names = [step.get("uses", step.get("run", "")).split("@")[0] for step in steps]
    assert "actions/cache" not in names  # it saves only on success
    restore, save = names.index("actions/cache/restore"), names.index("actions/cache/save")
    (build,) = (number for number, name in enumerate(names) if "build.sh" in name)
    (evict,) = (number for number, name in enumerate(names) if "doit cache gc" in name)
    assert restore < build < evict < save
    assert steps[evict]["if"] == steps[save]["if"] == "always()"
    assert steps[restore]["with"]["key"] == steps[save]["with"]["key"]
    assert steps[restore]["with"]["path"] == steps[save]["with"]["path"]
    # An entry can't be written twice, and a retried run has more to save.
    assert "run_id" in steps[save]["with"]["key"] and "run_attempt" in steps[save]["with"]["key"]
    assert steps[save]["with"]["key"].startswith(steps[restore]["with"]["restore-keys"])


def test_gitlab_saves_the_store_of_a_red_run_after_eviction():
    job = job_of(GITLAB[0])
    (store,) = (cache for cache in job["cache"] if ".store" in cache["paths"])
    assert store["when"] == "always"
    assert "doit cache gc" in job["after_script"]  # it runs before caches are saved


# Builds of only what a change affects

AFFECTED = {
    "format": 1,
    "since": "main",
    "packages": [
        {"package": "vision", "state": "changed", "lower": True, "validate": True},
        {"package": "gone", "state": "removed", "lower": False, "validate": False},
    ],
}
CALLS = """#!/bin/sh
echo "$*" >> calls
case "$1" in
    affected) cat given.json ;;
    validate) exit "$STATUS" ;;
    diff) echo "| a table |" ;;
esac
"""


def run_step(script, folder, record, **environment):
    """Run a script of a CI file with a stand-in for `doit` that prints a record.

    Return the exit status and the calls.
    """
    (folder / "given.json").write_text(json.dumps(record))
    (folder / "build").mkdir()
    (folder / "doit").write_text(CALLS)
    (folder / "doit").chmod(0o755)
    path = os.pathsep.join([str(folder), os.environ["PATH"]])
    given = {"PATH": path, "REVISION": "origin/main", "STATUS": "0", **environment}
    done = subprocess.run(["bash", "-e", "-c", script], cwd=folder, env=given)
    return done.returncode, (folder / "calls").read_text().splitlines()


@pytest.mark.parametrize(
    ("packages", "matrix", "any_"),
    [
        (AFFECTED["packages"], '{"include": [{"package":"vision"}]}', "yes"),
        ([], '{"include": []}', ""),
    ],
)
def test_the_reusable_workflow_makes_a_job_for_each_package(packages, matrix, any_, tmp_path):
    if shutil.which("jq") is None:
        pytest.skip("no jq, which GitHub's runners have")
    document = yaml.safe_load((FOLDER / REUSABLE[0]).read_text(encoding="utf-8"))
    (script,) = (s["run"] for s in document["jobs"]["affected"]["steps"] if s.get("id"))
    record = {**AFFECTED, "packages": packages}
    status, calls = run_step(script, tmp_path, record, GITHUB_OUTPUT="output")
    assert (status, calls) == (0, ["affected origin/main --json"])
    assert (tmp_path / "output").read_text() == f"matrix={matrix}\nany={any_}\n"


@pytest.mark.parametrize("status", [0, 1])
def test_the_component_builds_and_compares_what_is_affected(status, tmp_path):
    text = (FOLDER / COMPONENT[0]).read_text(encoding="utf-8").rpartition("\n---\n")[2]
    script = yaml.safe_load(text)["packages"]["script"][-1]
    environment = {"STATUS": str(status), "FAIL_ON": "removed"}
    ended, calls = run_step(script, tmp_path, AFFECTED, **environment)
    assert ended == status
    assert calls == [
        "export",
        "affected origin/main --json",
        "validate vision",
        "diff origin/main vision --markdown --fail-on removed",
    ]
    assert (tmp_path / "build" / "diff.md").read_text() == "| a table |\n"


def test_both_keep_the_store_of_a_red_run_and_name_our_settings():
    for name in (REUSABLE[0], COMPONENT[0]):
        text = (FOLDER / name).read_text(encoding="utf-8")
        ours = set(re.findall(r"PTE_PIPELINE_\w+", text))
        assert ours <= {*find_variables().values(), "PTE_PIPELINE_UNTRUSTED"}
        assert "when: always" in text or text.count("if: always()") >= 6


# build.sh

DOIT = """#!/bin/sh
echo "$PTE_PIPELINE_STORE_SIZE $*" >> called
case "$1" in
    "") exit "$BUILD" ;;
    diff) echo "| a table |"; exit "$DIFF" ;;
    cache) exit "$CACHE" ;;
esac
"""


def test_script_is_one_of_posix():
    done = subprocess.run(["sh", "-n", FOLDER / "build.sh"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("revision", "build", "diff", "cache", "status"),
    [
        ("main", 0, 0, 0, 0),
        ("main", 1, 3, 0, 1),
        ("main", 0, 3, 0, 3),
        ("main", 0, 0, 2, 2),
        ("", 1, 0, 0, 1),
    ],
)
def test_script_compares_and_evicts_in_any_case(revision, build, diff, cache, status, tmp_path):
    (tmp_path / "build").mkdir()
    (tmp_path / "doit").write_text(DOIT)
    (tmp_path / "doit").chmod(0o755)
    given = {"BUILD": build, "DIFF": diff, "CACHE": cache}
    path = os.pathsep.join([str(tmp_path), os.environ["PATH"]])
    environment = {name: str(value) for name, value in given.items()} | {"PATH": path}
    command = ["sh", FOLDER / "build.sh", revision]
    done = subprocess.run(command, cwd=tmp_path, env=environment)
    assert done.returncode == status
    calls = ["", f"diff {revision} --markdown", "cache gc"] if revision else ["", "cache gc"]
    assert (tmp_path / "called").read_text() == "".join(f"2GB {call}\n" for call in calls)
    assert (tmp_path / "build" / "diff.md").exists() == bool(revision)
    assert {"diff", "cache"} <= {*VERBS}


# comment.py

MARKER = "<!-- pte-pipeline: packages -->"


class Comments(BaseHTTPRequestHandler):
    """A server for the comments of one pull request, as on GitHub and GitLab."""

    def do_GET(self):
        split = urlsplit(self.path)
        if split.path.endswith("/user"):
            return self.answer({"id": 7})
        assert split.path == self.server.comments_path, self.path
        query = parse_qs(split.query)
        size, page = int(query["per_page"][0]), int(query["page"][0])
        return self.answer(self.server.comments[size * (page - 1) : size * page])

    def do_POST(self):
        assert self.path == self.server.comments_path
        body, number = self.body(), len(self.server.comments) + 1
        self.server.comments.append(comment(self.server.service, body, "ours", number))
        self.answer(self.server.comments[-1], status=201)

    def do_PATCH(self):
        self.edit("github")

    def do_PUT(self):
        self.edit("gitlab")

    def edit(self, service):
        folder, _, number = self.path.rpartition("/")
        assert service == self.server.service and folder == self.server.comment_path
        found = self.server.comments[int(number) - 1]
        found["body"] = self.body()
        self.answer(found)

    def body(self):
        text = self.rfile.read(int(self.headers["Content-Length"]))
        return json.loads(text)["body"]

    def answer(self, data, status=200):
        expected = {
            "github": ("Authorization", "Bearer t0ken"),
            "gitlab": ("PRIVATE-TOKEN", "t0ken"),
        }
        name, value = expected[self.server.service]
        status = status if self.headers[name] == value else 401
        text = json.dumps(data).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *arguments):
        pass


def comment(service, body, who, number):
    if service == "github":
        login = "github-actions[bot]" if who == "ours" else who
        return {"id": number, "body": body, "user": {"login": login}}
    return {"id": number, "body": body, "author": {"id": 7 if who == "ours" else 8}}


PATHS = {
    "github": ("/repos/team/shop/issues/5/comments", "/repos/team/shop/issues/comments"),
    "gitlab": ("/projects/12/merge_requests/5/notes", "/projects/12/merge_requests/5/notes"),
}


@pytest.fixture(params=["github", "gitlab"])
def service(request):
    """A server with 150 comments by others, then one by the same author."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Comments)
    server.service = request.param
    server.comments_path, server.comment_path = PATHS[request.param]
    bodies = [(f"remark {number}", "someone") for number in range(148)]
    bodies += [(f"{MARKER}\nnot ours", "someone"), ("of another pipeline", "ours")]
    server.comments = [
        comment(request.param, body, who, number) for number, (body, who) in enumerate(bodies, 1)
    ]
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def post(server, folder, *words, token="t0ken"):
    host, port = server.server_address
    address = f"http://{host}:{port}"
    if server.service == "github":
        given = {
            "GITHUB_API_URL": address,
            "GITHUB_REPOSITORY": "team/shop",
            "NUMBER": "5",
            "GITHUB_TOKEN": token,
        }
    else:
        given = {
            "GITLAB_CI": "true",
            "CI_API_V4_URL": address,
            "CI_PROJECT_ID": "12",
            "CI_MERGE_REQUEST_IID": "5",
            "NOTES_TOKEN": token,
        }
    command = [sys.executable, FOLDER / "comment.py", "build/diff.md", *words]
    return subprocess.run(command, cwd=folder, env=given, capture_output=True, text=True)


def test_a_change_has_one_comment_which_is_edited(service, tmp_path):
    before = json.dumps(service.comments)
    (tmp_path / "build").mkdir()
    file = tmp_path / "build" / "diff.md"
    assert post(service, tmp_path).returncode == 0  # nothing to compare
    for number, text in enumerate(("| first | ü |", "| second |")):
        file.write_text(text, encoding="utf-8")
        done = post(service, tmp_path)
        assert done.returncode == 0, done.stderr
        assert done.stdout == ("wrote", "edited")[number] + " the comment\n"
        assert json.dumps(service.comments[:150]) == before  # other comments are untouched
        assert [each["body"] for each in service.comments[150:]] == [f"{MARKER}\n{text}"]
    assert post(service, tmp_path, "phone").stdout == "wrote the comment\n"  # another workspace's
    assert service.comments[-1]["body"].startswith("<!-- pte-pipeline: phone -->")


def test_a_long_comparison_is_cut_at_a_line(service, tmp_path):
    (tmp_path / "build").mkdir()
    line = "| a row of a long table |"
    (tmp_path / "build" / "diff.md").write_text(f"{line}\n" * 10_000)
    assert post(service, tmp_path).returncode == 0
    body = service.comments[-1]["body"]
    assert len(body) < 65_536 and body.endswith(f"{line}\n\nThe rest is in the artifact.")


def test_a_token_that_is_refused_is_reported(service, tmp_path):
    (tmp_path / "build").mkdir()
    (tmp_path / "build" / "diff.md").write_text("| |")
    done = post(service, tmp_path, token="wrong")
    assert done.returncode == 1 and "answers 401" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_tests_that_ci_names_are_there():
    """Given one file that doesn't exist, pytest runs none of the others either."""
    words = re.findall(r"tests/\S+", (REPOSITORY / ".ci" / "run").read_text())
    command = ["bash", "-c", f"echo {' '.join(words)}"]  # bash expands braces
    paths = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert len(paths) > 15
    assert [path for path in paths if not (REPOSITORY / path).exists()] == []
