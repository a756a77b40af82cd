"""Mapped weights: the same values, no file changed, and memory that is released."""

import ctypes
import mmap

import pytest
import torch
from torch.export import export

from pipeline.program.archive import load_program, save_programs
from pipeline.program.archive_facts import describe_archive
from pipeline.program.mapped_files import release_pages, unlocked
from pipeline.program.sources import MethodSource
from pipeline.run.build.load import load_method
from pipeline.run.build.planned import guard_sources
from pipeline.store import digest
from pipeline.store.errors import SourceError
from pipeline.store.store import MissingBlobError, Store
from tests.program.test_sources import exchange_file, exchange_folder, exchange_link

MIB = 1 << 20


class Wide(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.wide = torch.nn.Linear(1024, 4096)  # 16 MiB
        self.narrow = torch.nn.Linear(4096, 2)

    def forward(self, x):
        return self.narrow(self.wide(x))


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    path = tmp_path_factory.mktemp("archive") / "wide.pt2"
    model = Wide().requires_grad_(False)
    save_programs({"forward": export(model, (torch.ones(1, 1024),))}, str(path))
    return path


def held(field):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) << 10 for line in status if line.startswith(f"{field}:"))


def test_mapped_weights_are_the_same_and_are_no_memory_until_they_are_read(archive):
    plain = load_program(archive, "forward").state_dict
    before = held("RssAnon"), held("RssFile")
    mapped = load_program(archive, "forward", mapped=True).state_dict
    assert held("RssAnon") - before[0] < 8 * MIB
    assert plain.keys() == mapped.keys()
    assert all(torch.equal(mapped[name], plain[name]) for name in plain)
    assert all(each.data_ptr() % 64 == 0 for each in mapped.values())
    assert held("RssFile") - before[1] > 12 * MIB
    release_pages()
    assert held("RssFile") - before[1] < 4 * MIB
    assert torch.equal(mapped["wide.weight"], plain["wide.weight"])


def test_what_is_written_to_mapped_weights_stays_and_changes_no_file(archive):
    content = archive.read_bytes()
    weight = load_program(archive, "forward", mapped=True).state_dict["wide.weight"]
    weight[0, 0] = 7.0
    release_pages()
    assert weight[0, 0] == 7.0
    assert archive.read_bytes() == content


def source_of(path, store, exported):
    (facts,) = describe_archive(path).programs
    content = store.put(path.read_bytes()) if exported else describe_archive(path).content
    return MethodSource(
        path, "forward", facts.program, facts.names, content=content, exported=exported
    )


def change_a_weight(path):
    path.chmod(0o644)
    with open(path, "r+b") as file:
        file.seek(8 * MIB)
        file.write(b"changed!")


@pytest.mark.parametrize("exported", [False, True], ids=["a user's", "in the store"])
@pytest.mark.parametrize("how", ["not at all", "in place", "another file"])
def test_archive_that_changes_while_it_is_used_is_noticed(archive, tmp_path, exported, how):
    """Its weights may have been read after the change."""
    store, own = Store(tmp_path / "store"), tmp_path / "wide.pt2"
    own.write_bytes(archive.read_bytes())
    source = source_of(own, store, exported)
    path = store.blob_path(source.content) if exported else own

    def use():
        with guard_sources([source], store):
            program = load_method(source, store)
            if how == "in place":
                change_a_weight(path)
            elif how == "another file":
                content = path.read_bytes()
                path.unlink()
                path.write_bytes(content)
            program.state_dict["wide.weight"].sum()

    if how == "not at all":
        use()
    else:
        with pytest.raises(MissingBlobError if exported else SourceError):
            use()


def test_methods_of_an_archive_hash_it_once_and_again_if_it_changes(archive, tmp_path, monkeypatch):
    store, hashed, hash_file = Store(tmp_path / "store"), [], digest.hash_file
    source = source_of(archive, store, exported=True)
    path = store.blob_path(source.content)
    monkeypatch.setattr(digest, "hash_file", lambda file: hashed.append(file) or hash_file(file))
    for _ in range(3):
        load_method(source, store)
    assert hashed == [path]
    change_a_weight(path)
    with pytest.raises(MissingBlobError):
        load_method(source, store)


@pytest.mark.parametrize("exchange", [exchange_file, exchange_link, exchange_folder])
def test_another_archive_that_stood_there_for_a_while_is_noticed(tmp_path, exchange):
    """The original is restored before anything looks at the path again."""
    path = tmp_path / "models" / "m.pt2"
    for folder, size in (("one", 2), ("two", 3)):
        (tmp_path / folder).mkdir()
        module = torch.nn.Linear(size, size)
        programs = {"forward": export(module, (torch.ones(size),))}
        save_programs(programs, tmp_path / folder / "m.pt2")
    exchange(path, tmp_path / "one")
    store = Store(tmp_path / "store")
    source = source_of(path, store, exported=False)
    changed = pytest.raises(SourceError, match=r"m\.pt2: changed while the build ran; run again")
    with changed, guard_sources([source], store):
        exchange(path, tmp_path / "two")
        try:
            load_program(path, "forward")
        finally:
            exchange(path, tmp_path / "one")
    with guard_sources([source], store):
        load_method(source, store)


def test_nothing_is_locked_into_memory():
    """Root's capability overrides the limit; the test restores both."""
    page = mmap.mmap(-1, mmap.PAGESIZE)
    address = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(page)))
    lock = ctypes.CDLL(None).mlock
    before = lock(address, ctypes.c_size_t(mmap.PAGESIZE))
    ctypes.CDLL(None).munlock(address, ctypes.c_size_t(mmap.PAGESIZE))
    with unlocked():
        assert lock(address, ctypes.c_size_t(mmap.PAGESIZE)) == -1
    assert lock(address, ctypes.c_size_t(mmap.PAGESIZE)) == before
