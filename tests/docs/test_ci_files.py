"""The files of examples/ci/ are what GitHub, GitLab and a POSIX shell take."""

import subprocess
import sys

import pytest
import yaml

from tests.support.bench import REPOSITORY

FOLDER = REPOSITORY / "examples" / "ci"
# check-jsonschema brings their schemas.
GITHUB = ("github-actions.yml", "vendor.github-workflows")
GITLAB = ("gitlab-ci.yml", "vendor.gitlab-ci", "--data-transform", "gitlab-ci")


def check(file, schema, *more):
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, *more, file]
    return subprocess.run([str(word) for word in command], capture_output=True, text=True)


@pytest.mark.parametrize(("name", "schema", "more"), [(n, s, m) for n, s, *m in (GITHUB, GITLAB)])
def test_file_keeps_to_its_schema(name, schema, more, tmp_path):
    done = check(FOLDER / name, schema, *more)
    assert done.returncode == 0, done.stdout
    wrong = yaml.safe_load((FOLDER / name).read_text(encoding="utf-8"))
    job = wrong["jobs"]["packages"] if "jobs" in wrong else wrong["packages"]
    job["services"] = 3
    (tmp_path / name).write_text(yaml.safe_dump(wrong), encoding="utf-8")
    assert check(tmp_path / name, schema, *more).returncode == 1


@pytest.mark.parametrize("name", ["github-actions.yml", "gitlab-ci.yml"])
def test_file_keeps_the_store_the_history_and_the_reports(name):
    text = (FOLDER / name).read_text(encoding="utf-8")
    assert ".store" in text and "build.sh" in text and "requirements.txt" in text
    assert "fetch-depth: 0" in text or 'GIT_DEPTH: "0"' in text


def test_script_is_one_of_posix():
    done = subprocess.run(["sh", "-n", FOLDER / "build.sh"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
