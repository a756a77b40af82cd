"""Settings: the file, the environment, and the valid form of each."""

import os

import pytest

from pipeline.store import setting_table, settings_reader
from pipeline.store.errors import PipelineError
from pipeline.store.places import default_root
from pipeline.store.settings import read_remote
from pipeline.store.settings_reader import open_settings
from pipeline.store.workspace import open_workspace
from tests.support.setting_variables import find_variables

HEAD = "[tool.pte-pipeline]\n"


@pytest.fixture(autouse=True)
def no_environment(monkeypatch):
    for variable in (*find_variables().values(), "PTE_PIPELINE_UNTRUSTED"):
        monkeypatch.delenv(variable, raising=False)


@pytest.fixture
def settings(tmp_path):
    def read(text=""):
        (tmp_path / "pyproject.toml").write_text(HEAD + text)
        return open_workspace(tmp_path)

    return read


@pytest.fixture
def remote_of(settings, tmp_path):
    """Return the settings of the remote, which a store keeps private."""

    def read(text=""):
        settings(text)
        return read_remote(open_settings(tmp_path))

    return read


def test_defaults(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = open_workspace(tmp_path)
    assert found.jobs >= 1
    assert found.store.root == tmp_path / "pte-pipeline"
    assert found.store.cap == 50 * 10**9
    assert read_remote(open_settings(tmp_path)) is None


def test_file_says(settings, tmp_path):
    found = settings('jobs = 3\nstore = "here"\nstore_size = "1.5 GiB"\n')
    assert (found.jobs, found.store.root, found.store.cap) == (3, tmp_path / "here", 3 * 2**29)


def test_a_system_that_does_not_tell_which_cores_are_ours_gives_all(tmp_path, monkeypatch):
    """As on macOS."""
    monkeypatch.delattr(os, "sched_getaffinity")
    assert open_workspace(tmp_path).jobs == os.cpu_count()


def test_environment_wins(settings, tmp_path, monkeypatch):
    monkeypatch.setenv("PTE_PIPELINE_JOBS", "2")
    monkeypatch.setenv("PTE_PIPELINE_STORE", str(tmp_path / "there"))
    monkeypatch.setenv("PTE_PIPELINE_STORE_SIZE", "7MB")
    found = settings('jobs = 3\nstore = "here"\nstore_size = "1GB"\n')
    assert (found.jobs, found.store.root, found.store.cap) == (2, tmp_path / "there", 7_000_000)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("jobs = 0", "pyproject.toml: tool.pte-pipeline.jobs: is 0; must be a whole number"),
        ("jobs = true", "whole number from 1 up"),
        ("jobs = 1.5", "whole number from 1 up"),
        ("store = 3", "store: is 3; must be a path"),
        ('store_size = "big"', "store_size: is 'big'; must be a size such as 50GB"),
        ("store_size = 5", "must be a size such as 50GB"),
        ('remote = "bucket"', "remote: is 'bucket'; must be an address such as s3://"),
        ('remote = "file://"', "remote: is 'file://'; must be an address such as s3://"),
        ('remote = "file://cache"', "remote: is 'file://cache'; must be an address such as s3://"),
        ('remote = "file:///x"\nremote_mode = "rw"', "must be read-write or read-only"),
        ('remote = "file:///x"\nremote_timeout = 0', "a number of seconds above 0"),
        ('remote = "file:///x"\nremote_timeout = 1e300', "a number of seconds above 0"),
        ('store = "~nobody-of-this-name/x"', "must be a path"),
        ('remote = "file:///x"\ntrusted_keys = 1', "a path or a list of paths"),
        ('remote = "file:///x"\nremote_options = 1', "must be a table"),
        ("job = 3", "unknown key 'job'; did you mean 'jobs'?"),
        ("jobs = ", "pyproject.toml: "),
    ],
)
def test_mistakes_are_reported(settings, text, words):
    with pytest.raises(PipelineError) as error:
        settings(text)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_all_mistakes_are_reported_together(settings, monkeypatch):
    monkeypatch.setenv("PTE_PIPELINE_REFIT", "maybe")
    with pytest.raises(PipelineError) as caught:
        settings('jbos = 2\nstore_size = "much"\nremote_timeout = -1\n')
    names = ("PTE_PIPELINE_REFIT: ", "'jbos'; did you", ".remote_timeout: ", ".store_size: ")
    for name in names:
        assert sum(name in line for line in caught.value.lines) == 1
    assert len(caught.value.lines) == len(names)


def test_mistake_in_the_environment_names_the_variable(settings, monkeypatch):
    monkeypatch.setenv("PTE_PIPELINE_JOBS", "many")
    with pytest.raises(PipelineError, match="PTE_PIPELINE_JOBS: is 'many'; must be a whole number"):
        settings()


def test_remote(remote_of, tmp_path, monkeypatch):
    found = remote_of(
        'remote = "s3://b/c"\nsigning_key = "key.pem"\ntrusted_keys = ["a.pem", "/b.pem"]\n'
        "remote_timeout = 3\nremote_options = {anon = true}\n"
    )
    assert (found.url, found.writable, found.timeout) == ("s3://b/c", True, 3.0)
    assert found.signing_key == tmp_path / "key.pem"
    assert [str(path) for path in found.trusted_keys] == [str(tmp_path / "a.pem"), "/b.pem"]
    assert found.options == {"anon": True}
    monkeypatch.setenv("PTE_PIPELINE_REMOTE_MODE", "read-only")
    assert not remote_of(UNSIGNED).writable


UNSIGNED = 'remote = "s3://b/c"\nremote_trust = "unsigned"\n'


def test_somebody_says_whose_results_are_believed(settings, remote_of, monkeypatch):
    wrong = r"no trust setting for the remote; set trusted_keys .* or "
    with pytest.raises(PipelineError, match=wrong):
        settings('remote = "s3://b/c"')
    assert remote_of(UNSIGNED).believes_all
    assert not remote_of('remote = "s3://b/c"\ntrusted_keys = ["a.pub"]').believes_all
    with pytest.raises(PipelineError, match="has both keys and remote_trust; keep"):  # no downgrade
        settings(f'{UNSIGNED}trusted_keys = ["a.pub"]')
    monkeypatch.setenv("PTE_PIPELINE_REMOTE_TRUST", "unsigned")
    assert remote_of('remote = "s3://b/c"').believes_all


def test_untrusted_build_goes_by_its_environment_alone(settings, remote_of, tmp_path, monkeypatch):
    text = f'{UNSIGNED}remote_mode = "read-write"\nstore = "/stranger"\njobs = 3\n'
    assert remote_of(text).writable
    monkeypatch.setenv("PTE_PIPELINE_UNTRUSTED", "1")
    found = settings(text)  # the build's author can edit the file
    assert (found.store.root, found.jobs) == (default_root(), 3) and remote_of(text) is None
    monkeypatch.setenv("PTE_PIPELINE_REMOTE", "s3://ours/c")
    with pytest.raises(PipelineError, match="no trust setting for the remote"):
        settings(text)
    monkeypatch.setenv("PTE_PIPELINE_TRUSTED_KEYS", "keys/a.pub")
    with pytest.raises(PipelineError, match=r"TRUSTED_KEYS: keys/a\.pub is in the workspace"):
        settings(text)
    monkeypatch.setenv("PTE_PIPELINE_TRUSTED_KEYS", "/etc/keys/a.pub")
    monkeypatch.setenv("PTE_PIPELINE_SIGNING_KEY", "keys/own.pem")  # it is trusted too
    with pytest.raises(PipelineError, match=r"SIGNING_KEY: keys/own\.pem is in the workspace"):
        settings(text)
    monkeypatch.setenv("PTE_PIPELINE_SIGNING_KEY", "../outside/own.pem")
    assert remote_of(text).signed
    monkeypatch.delenv("PTE_PIPELINE_SIGNING_KEY")
    assert remote_of(text).url == "s3://ours/c"
    assert not remote_of(text).writable
    monkeypatch.setenv("PTE_PIPELINE_REMOTE_MODE", "read-write")
    assert remote_of(text).writable
    monkeypatch.setenv("PTE_PIPELINE_UNTRUSTED", "0")
    monkeypatch.delenv("PTE_PIPELINE_TRUSTED_KEYS")
    assert remote_of(text).url == "s3://ours/c"


def test_no_home_is_one_line(settings, monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr("os.path.expanduser", lambda path: path)
    with pytest.raises(PipelineError, match=r"no home folder; set HOME or XDG_CACHE_HOME"):
        settings("")


def test_settings_of_a_feature_that_was_deleted_are_refused(settings, monkeypatch, request):
    request.addfinalizer(setting_table.find_settings.cache_clear)
    monkeypatch.setattr(setting_table, "find_features", lambda: ())
    monkeypatch.setattr(settings_reader, "has_feature", lambda name: False)
    setting_table.find_settings.cache_clear()
    lack = 'this installation has no feature "remote"; unset it'
    for line in ('remote = "file:///x"', 'remote_mode = "read-only"'):
        with pytest.raises(PipelineError, match=f"tool.pte-pipeline.{line.split()[0]}: {lack}"):
            settings(line)
    with pytest.raises(PipelineError, match="unknown key 'job'"):
        settings("job = 1")
    monkeypatch.setenv("PTE_PIPELINE_REMOTE", "file:///x")
    with pytest.raises(PipelineError, match=f"PTE_PIPELINE_REMOTE: {lack}"):
        settings()


def test_an_executor_is_one_of_this_installation(settings, monkeypatch):
    assert settings('executor = "dask://host:8786"').executor == "dask://host:8786"
    for text in ("dask://host", "dask:", "da sk"):
        with pytest.raises(PipelineError, match=r"executor: is '.*'; must be dask, for a cluster"):
            settings(f'executor = "{text}"')
    lack = "tool.pte-pipeline.executor: this installation has no executor 'slurm'; take dask"
    with pytest.raises(PipelineError, match=lack):
        settings('executor = "slurm"')
    monkeypatch.setattr("pipeline.store.settings.find_functions", lambda moment: {})
    monkeypatch.setenv("PTE_PIPELINE_EXECUTOR", "dask")
    lack = "PTE_PIPELINE_EXECUTOR: this installation has no executor 'dask'; unset it to build on"
    with pytest.raises(PipelineError, match=lack):
        settings()
