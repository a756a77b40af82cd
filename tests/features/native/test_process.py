"""A runner that ends, hangs or garbles its answers is one error; stand-ins do so on purpose."""

import textwrap

import pytest

from pipeline.devices.interface import PackageFiles
from pipeline.features.native.process import RunnerProcess
from pipeline.store.errors import DeviceError

FILES = PackageFiles("some.pte", b"content")


def make_command(folder, text):
    program = folder / "runner"
    program.write_text("#!/bin/sh\n" + textwrap.dedent(text))
    program.chmod(0o755)
    return [str(program)]


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (
            "echo 'bad CPU' >&2; exit 3",
            r"does not open: the runner ended \(exit status 3\): bad CPU",
        ),
        ("kill -SEGV $$", r"does not open: the runner ended \(SIGSEGV\)"),
        ("exec sleep 60", r"no answer within 0.3 s \(validate.timeout\)"),
        ("printf '\\001\\0\\0\\0'; cat", "the runner speaks version 1, not 2"),
    ],
)
def test_a_runner_that_does_not_answer(script, reason, tmp_path):
    with pytest.raises(DeviceError, match=rf"some.pte: .*{reason}"):
        RunnerProcess(make_command(tmp_path, script), FILES, 0.3)


def test_a_runner_that_is_not_there(tmp_path):
    with pytest.raises(DeviceError, match="/nowhere does not start: No such file"):
        RunnerProcess(["/nowhere"], FILES, 1)


def test_files_in_memory_are_given_as_files(tmp_path):
    """The stand-in opens the package in 0 ns, and keeps the files that it got."""
    script = f"""
    cat "$1" "$2" > {tmp_path}/kept
    printf '\\002\\0\\0\\0' # the version
    printf '\\0\\0\\0\\0' # no error
    printf '\\0\\0\\0\\0' # no lines of a log
    printf '\\0\\0\\0\\0\\0\\0\\0\\0'
    exec sleep 60
    """
    process = RunnerProcess(
        make_command(tmp_path, script), PackageFiles("some.pte", b"program", (b", data",)), 10
    )
    assert process.is_alive and process.open_ms == 0
    assert (tmp_path / "kept").read_bytes() == b"program, data"
    process.close()
    assert not process.is_alive
