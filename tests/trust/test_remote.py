"""The remote is an attacker: it contains forged results."""

import json
import os
import random
import socket
import threading
import time
from contextlib import contextmanager, suppress

import pytest

from pipeline.features.remote.public_keys import name_public_key
from pipeline.features.remote.remote import Remote, RemoteSettings
from pipeline.features.signing.keys import load_keys
from pipeline.plan.actions import Action
from pipeline.run.install import install
from pipeline.store.digest import hash_json
from pipeline.store.entries import ActionEntry, fits_action
from pipeline.store.errors import PipelineError
from pipeline.store.forms import Count, FileName, SystemName, fits
from pipeline.store.names import is_file_name
from pipeline.store.store import Store
from pipeline.store.workspace import open_workspace
from tests.support.keys import write_keys
from tests.trust.forged import NAMES, Victim, attack, check_of, mutate

EXAMPLES = int(os.environ.get("PTE_FORGED", "3"))


@pytest.fixture
def victim(built, tmp_path):
    """Return a function that makes a fresh checkout with a remote of what `built` built."""

    def make(**how):
        folder = tmp_path / f"victim{len(list(tmp_path.glob('victim*')))}"
        folder.mkdir()
        return Victim(built, folder, **how)

    return make


@pytest.mark.parametrize("name", ["../../../stranger", "{outside}/stranger"])
def test_no_name_in_a_result_leads_out_of_the_package(victim, name):
    forged = victim()
    name = name.format(outside=forged.folder)
    text = forged.put(b"a stranger's")
    forged.forge("link", lambda result: result["files"].update({name: text}))
    before = forged.outside()
    assert forged.checkout.doit("lower:pair", **forged.environment) == 0, forged.checkout.output
    assert forged.outside() == before
    assert forged.checkout.outcomes()["link pair"] == "refit"
    assert forged.package() == {"pair.pte": forged.bench.bytes_of("pair", "pair.pte")}


def test_names_are_plain_and_those_of_the_action(victim):
    forged = victim()
    _, record = forged.find("link")
    key, files = record["key"], record["result"]["files"]
    text = "0" * 64
    assert fits_action(key, record["result"])
    assert fits_action(key, {"files": files | {"weights.ptd": text}})
    for name in (*NAMES, "other.pte", "weights.txt", "PAIR.PTD/x", "report.json"):
        assert not fits_action(key, {"files": files | {name: text}}), name
    assert not fits_action(key, {"files": files | {"a.ptd": text, "A.ptd": text}})
    assert not fits_action(key, {"files": {"pair.pte": text}})
    aux = {f"aux{n.removeprefix('pair')}" if n == "pair.pte" else n: d for n, d in files.items()}
    assert fits_action({**key, "file": "aux"}, {"files": aux})  # a file may have this name
    with pytest.raises(PipelineError, match="is not a valid file name in a package"):
        workspace = open_workspace(forged.checkout.root)
        install(
            workspace, Action("link", "pair", "pair", None, key, None), {"files": {"../x": "0"}}
        )


def test_a_refused_result_is_counted(victim):
    forged = victim()
    forged.forge("link", lambda result: result["files"].update({"/x": "0" * 64}))
    path, _ = forged.find("link")
    store = Store(forged.folder / "s", RemoteSettings(forged.remote.as_uri(), unsigned=True))
    assert store.get(path.parent.name + path.stem) is None
    assert store.remote.counts.corrupt == 1 and store.remote.counts.hits == 0


def test_a_text_is_no_package_whoever_says_so(victim):
    forged = victim()
    text = forged.put(b"this is no package")
    forged.forge("link", lambda result: result["files"].update({"pair.pte": text}))
    assert forged.checkout.doit("lower:pair", **forged.environment) == 0, forged.checkout.output
    assert forged.package() == {"pair.pte": forged.bench.bytes_of("pair", "pair.pte")}
    words = "the store's result of link pair is not used: pair.pte is not a .pte file"
    assert words in forged.checkout.output
    assert forged.checkout.doit("lower:pair", **forged.environment) == 0
    assert forged.checkout.output.startswith("up to date: 1 package\n")


def test_another_package_is_not_this_one(victim):
    """Its manifest describes other bytes."""
    forged = victim()
    changed = bytearray(forged.bench.bytes_of("pair", "pair.pte"))
    changed[-1] ^= 1
    other = forged.put(bytes(changed))
    forged.forge("link", lambda result: result["files"].update({"pair.pte": other}))
    assert forged.checkout.doit("lower:pair", **forged.environment) == 0, forged.checkout.output
    assert forged.package() == {"pair.pte": forged.bench.bytes_of("pair", "pair.pte")}
    assert "manifest.json has another files" in forged.checkout.output


def test_an_export_that_names_another_program_runs_again(victim):
    forged = victim()

    def lie(result):
        result["methods"][0]["program"] = "0" * 64

    forged.forge("export", lie)
    assert forged.checkout.doit("lower:pair", **forged.environment) == 0, forged.checkout.output
    assert forged.package() == {"pair.pte": forged.bench.bytes_of("pair", "pair.pte")}
    assert forged.checkout.doit("lower:pair", **forged.environment) == 0
    assert "up to date: 1 package\n" in forged.checkout.output


def test_nobody_is_believed_unless_the_user_says_so(victim):
    forged = victim()
    environment = {"PTE_PIPELINE_REMOTE": forged.environment["PTE_PIPELINE_REMOTE"]}
    assert forged.checkout.doit("lower:pair", **environment) == 3
    (line,) = forged.checkout.output.splitlines()
    assert "trusted_keys" in line and "remote_trust = 'unsigned'" in line
    assert forged.checkout.doit("lower:pair", **forged.environment) == 0
    assert "remote: trusted without signatures" in forged.checkout.output
    assert forged.checkout.doit("lower:pair", **forged.environment) == 0
    assert "remote: trusted without signatures" in forged.checkout.output  # at each run


def test_an_untrusted_build_goes_by_its_environment(victim):
    """A remote from untrusted settings is never queried, and the store isn't filled from it."""
    forged = victim()
    (forged.checkout.root / "pyproject.toml").write_text(
        f'[tool.pte-pipeline]\nremote = "{forged.remote.as_uri()}"\nremote_trust = "unsigned"\n'
        f'store = "{forged.folder / "elsewhere"}"\n'
    )
    assert forged.checkout.doit("cache", PTE_PIPELINE_UNTRUSTED="1") == 0, forged.checkout.output
    assert forged.checkout.doit("plan", PTE_PIPELINE_UNTRUSTED="1") == 0, forged.checkout.output
    assert "hit" not in forged.checkout.output and "in the store" not in forged.checkout.output
    assert not (forged.folder / "elsewhere").exists()


def test_what_was_believed_unsigned_is_no_result_where_signatures_are_asked_for(tmp_path, folder):
    """Otherwise a signer would sign what follows from it."""
    site, key = folder, {"kind": "test"}
    Store(tmp_path / "a", site.settings()).put_result(key, {"forged": 1})
    believer, (private, public) = Store(tmp_path / "b", site.settings()), write_keys(tmp_path)
    assert believer.get_by_key(key).result == {"forged": 1}
    assert Store(tmp_path / "b").get_by_key(key) is None  # otherwise it would sign in two steps
    signer = Store(tmp_path / "b", site.settings(signing_key=private, unsigned=False))
    assert signer.get_by_key(key) is None
    signer.put_result(key, {"own": 1})
    doubter = Store(tmp_path / "c", site.settings(trusted_keys=(public,), unsigned=False))
    assert doubter.get_by_key(key).result == {"own": 1}


def test_a_revoked_key_vouches_for_nothing(tmp_path, folder):
    """Neither its signed results count, nor what was made from them, which we would sign next."""
    (one, one_public), (two, two_public) = (write_keys(tmp_path / name) for name in ("one", "two"))
    site = lambda **more: folder.settings(unsigned=False, **more)  # noqa: E731
    fetched, made, earlier = ({"kind": "test", "number": n} for n in range(3))
    Store(tmp_path / "a", site(signing_key=one)).put_result(fetched, {"value": 1})

    both = Store(tmp_path / "b", site(trusted_keys=(one_public, two_public), writable=False))
    both.put_result(earlier, {"value": 3})
    assert both.get_by_key(fetched).result == {"value": 1}
    both.put_result(made, {"value": 2})
    again = Store(tmp_path / "b", site(trusted_keys=(one_public,), writable=False))
    assert all(again.get_by_key(key) for key in (fetched, made, earlier))

    revoked = Store(tmp_path / "b", site(trusted_keys=(two_public,), signing_key=two))
    assert revoked.get_by_key(fetched) is None
    assert revoked.get_by_key(made) is None
    assert revoked.get_by_key(earlier).result == {"value": 3}
    revoked.share([hash_json(key) for key in (fetched, made, earlier)], [])
    reader = Store(tmp_path / "c", site(trusted_keys=(two_public,)))
    assert [reader.get_by_key(key) is not None for key in (fetched, made, earlier)] == [
        False,
        False,
        True,
    ]
    assert Store(tmp_path / "b").get_by_key(fetched) is None  # without the remote


@pytest.mark.parametrize("overflows", [False, True], ids=["fresh", "with an overflow"])
def test_what_is_made_after_the_first_fetch_is_vouched_for(tmp_path, folder, overflows):
    """This also holds if the store was empty, or if an earlier run could not write to it."""
    private, public = write_keys(tmp_path / "one")
    fetched, made = ({"kind": "test", "number": number} for number in range(2))
    Store(tmp_path / "a", folder.settings(unsigned=False, signing_key=private)).put_result(
        fetched, {"value": 1}
    )
    overflow = tmp_path / "overflow"
    if overflows:
        overflow.mkdir()
        (overflow / "vouchers").write_text("")
    settings = folder.settings(unsigned=False, trusted_keys=(public,), writable=False)
    store = Store(tmp_path / "b", settings, overflow=overflow)
    assert store.get_by_key(fetched).vouchers == (name_public_key(public),)
    store.put_result(made, {"value": 2})
    assert store.get_by_key(made).vouchers == (name_public_key(public),)
    assert Store(tmp_path / "b", overflow=overflow).get_by_key(made) is None


def test_a_public_key_has_one_name(tmp_path):
    private, public = write_keys(tmp_path)
    assert {name_public_key(public)} == load_keys(private, ()).trusted.keys()
    assert name_public_key(private) is None and name_public_key(tmp_path) is None


def test_a_package_of_a_revoked_key_is_built_again(victim):
    forged = victim(signed=True)
    assert forged.checkout.doit("lower:pair", **forged.environment) == 0, forged.checkout.output
    assert forged.checkout.outcomes()["link pair"] == "hit"
    assert forged.checkout.doit("lower:pair", **forged.environment) == 0
    assert forged.checkout.output.startswith("up to date")
    _, public = write_keys(forged.folder / "other")
    other = {**forged.environment, "PTE_PIPELINE_TRUSTED_KEYS": str(public)}
    assert forged.checkout.doit("plan", "pair", **other) == 0
    export, *_, remote, _ = forged.checkout.output.splitlines()
    assert "a key that is no longer trusted" in export and "changed" not in export
    assert remote.startswith("remote: ") and "without a trusted signature, ignored" in remote
    assert forged.checkout.doit("lower:pair", **other) == 0, forged.checkout.output
    (link,) = (each for each in forged.checkout.actions() if each["kind"] == "link")
    assert link["outcome"] == "built" and "a key that is no longer trusted" in link["reason"]
    assert forged.checkout.doit("lower:pair", **other) == 0
    assert forged.checkout.output.startswith("up to date")


def test_a_package_of_unsigned_results_is_not_up_to_date_where_they_are_not_believed(victim):
    forged = victim()
    assert forged.checkout.doit("lower:pair", **forged.environment) == 0, forged.checkout.output
    assert forged.checkout.doit("lower:pair", **forged.environment) == 0
    assert forged.checkout.output.startswith("up to date")
    assert forged.checkout.doit("lower:pair") == 0, forged.checkout.output
    (link,) = (each for each in forged.checkout.actions() if each["kind"] == "link")
    assert link["outcome"] == "built" and "unsigned results" in link["reason"]
    assert forged.checkout.doit("lower:pair") == 0
    assert forged.checkout.output.startswith("up to date")


def test_a_signed_result_is_of_its_action_alone(victim):
    """Under another name, with another signer, or without its signature it doesn't count."""
    forged = victim(signed=True)
    settings = RemoteSettings(
        forged.remote.as_uri(), trusted_keys=(forged.folder / "key.pub",), writable=False
    )
    (first, record), (second, _) = forged.find("link"), forged.find("validate")
    action = first.parent.name + first.stem
    place = forged.remote / first
    whole = json.loads(place.read_bytes())

    def found(**changes):
        place.write_text(json.dumps({**whole, **changes}))
        return Store(forged.folder / "s" / str(time.time_ns()), settings).get(action)

    assert found().result == record["result"]
    assert found(signature=None) is found(signer=None) is found(signer="0" * 64) is None
    assert found(record={**record, "seconds": 0.0}) is None
    assert found(signer=[], signature={}) is None
    assert found(**json.loads((forged.remote / second).read_bytes())) is None


def test_a_changed_record_is_none_or_of_its_action(_built):
    """With a valid checksum, any changed field still has the form of its kind when it is read."""
    stored = [path.read_bytes() for path in sorted(_built.store.glob("actions/*/*.json"))]
    digests = [path.parent.name + path.name for path in sorted(_built.store.glob("blobs/*/*"))]
    read = 0
    for seed in range(EXAMPLES * 100):
        draw = random.Random(seed)
        record = json.loads(draw.choice(stored))
        action = hash_json(record["key"])
        changed = mutate(record, digests, _built.root, draw)
        with suppress(KeyError, TypeError, ValueError):
            record["check"] = check_of(record)
        entry = ActionEntry.from_json(record, action)
        read += entry is not None
        assert entry is None or fits_action(entry.key, entry.result), changed
        for name in entry.result.get("files", ()) if entry else ():
            assert is_file_name(name), changed
    assert 0 < read < EXAMPLES * 50


@pytest.mark.slow
@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.parametrize("seed", range(EXAMPLES))
def test_a_remote_of_forged_records_harms_nothing(built, tmp_path, seed, signed):
    done, wrong = attack(built, tmp_path / "v", seed, signed)
    assert not wrong, done


def test_forms_are_exact():
    assert fits({"a": 1}, dict[str, Count]) and not fits({"a": -1}, dict[str, Count])
    assert not fits(True, int) and not fits(float("nan"), float) and not fits("\ud800", str)
    assert fits(["a", 1], tuple[FileName, int]) and not fits(["a/b", 1], tuple[FileName, int])
    assert fits("\udcff", SystemName) and not fits("\ud800", SystemName)
    assert not fits("a\0", SystemName)
    assert fits(None, int | None) and not fits(10**400, float)


# Remotes that never end


@contextmanager
def serving(answer):
    """Run a server that calls `answer(connection)` for every request."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve():
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                threading.Thread(target=respond, args=(connection,), daemon=True).start()

        def respond(connection):
            with connection:
                connection.settimeout(10)
                try:
                    connection.recv(1 << 16)
                    answer(connection)
                except OSError:
                    pass

        threading.Thread(target=serve, daemon=True).start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def endless(connection):
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n")
    for _ in range(1 << 20):
        connection.sendall(b"[" * (1 << 16))


def claims_much(connection):
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 10000000000000\r\n\r\n{")
    time.sleep(100)


def drips(connection):
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
    for _ in range(1000):
        connection.sendall(b"{")
        time.sleep(0.1)


def redirects(connection):
    connection.sendall(b"HTTP/1.1 302 Found\r\nLocation: file:///etc/passwd\r\n\r\n")


@pytest.mark.parametrize("answer", [endless, claims_much, drips, redirects])
def test_an_answer_that_does_not_end_is_a_miss(answer):
    import resource

    with serving(answer) as url:
        remote = Remote(RemoteSettings(url, unsigned=True, timeout=1.0))
        before, started = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
        assert remote.fetch_result("0" * 64) is None
        assert time.monotonic() - started < 60  # the other remotes last 100 s
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 400_000  # KiB


def test_what_another_process_gave_up_is_not_asked_again(folder):
    other, remote = folder.remote(), folder.remote()
    other.counts.hits, remote.counts.hits = 1, 2
    remote.join(*other.outcome())
    assert remote.counts.hits == 3 and remote._usable()
    other.problem, other._given_up = "no answer", True
    remote.join({}, *other.outcome()[1:])
    assert remote.problem == "no answer" and not remote._usable()


@pytest.mark.parametrize(
    "content",
    [
        *(b"[" * 100_000, b'{"record":' * 50_000, b"null", b"[]", b'"x"', b"1e999", b"9" * 10_000),
        *(b"", b"\xff\xfe", b'{"record": {"key": NaN}}', b'{"record": null}'),
        b'{"record": "\\ud800"}',
    ],
)
def test_what_is_no_record_is_a_miss(folder, content):
    folder.write(f"actions/00/{'0' * 62}.json", content)
    remote = folder.remote()
    assert (
        remote.fetch_result("0" * 64, lambda record: ActionEntry.from_json(record, "0" * 64))
        is None
    )
    assert remote.counts.corrupt == 1
