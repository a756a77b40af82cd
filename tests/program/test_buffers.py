"""The buffers of a program: its archive lists what torch finds."""

import torch
from torch import nn
from torch.export import export

from pipeline.program.archive import save_programs
from pipeline.program.archive_reader import open_archive
from pipeline.program.buffers import describe_buffers, find_common
from pipeline.program.eager import describe_used_buffers
from pipeline.program.operator_libraries import register_operators

X = torch.ones(2, 3)
AT = torch.zeros(1, dtype=torch.int64)


class State(nn.Module):
    def __init__(self, change):
        super().__init__()
        self.change = change
        self.register_buffer("cache", torch.zeros(2, 3))
        self.register_buffer("table", torch.zeros(2, 3))
        self.register_buffer("unused", torch.zeros(1))

    def forward(self, x):
        self.change(self.cache, x)
        return self.cache + self.table + x


def set_slice(cache, x):
    cache[:, 1:] = x[:, 1:]


def add_to_view(cache, x):
    cache.transpose(0, 1)[0].mul_(2)


def add_to_chunk(cache, x):
    cache.chunk(2)[1].add_(1)


def without_gradients(cache, x):
    with torch.no_grad():
        cache.view(-1).copy_(x.flatten())


def or_in_place(cache, x):
    flags = cache > 0
    flags |= x > 0


def add_to_copy(cache, x):
    (cache + 1).add_(x)
    cache.clone().zero_()


def into(cache, x):
    torch.add(x, 1, out=cache)


def update_cache(cache, x):
    torch.ops.llama.update_cache(x.view(1, 1, 2, 3), cache.view(1, 1, 2, 3), 0)


CHANGES = {
    "index_copy": lambda cache, x: cache.index_copy_(0, AT, x[:1]),
    "set_slice": set_slice,
    "add_to_view": add_to_view,
    "add_to_chunk": add_to_chunk,
    "without_gradients": without_gradients,
    "into": into,
    "update_cache": update_cache,
    "nothing": lambda cache, x: None,
    "or_in_place": or_in_place,
    "add_to_copy": add_to_copy,
}
LEFT_ALONE = {"nothing", "or_in_place", "add_to_copy"}


def test_the_archive_says_what_torch_finds(tmp_path):
    register_operators(["llama.update_cache.default"])
    programs = {name: export(State(change), (X,)) for name, change in CHANGES.items()}
    programs["decomposed"] = programs["index_copy"].run_decompositions({})
    path = tmp_path / "all.pt2"
    save_programs(programs, path)
    with open_archive(path) as archive:
        found = {name: describe_buffers(archive.program(name)) for name in programs}
    assert found == {name: describe_used_buffers(program) for name, program in programs.items()}
    left_alone = {name for name, buffers in found.items() if not buffers["cache"]["changed"]}
    assert left_alone == LEFT_ALONE
    assert found["set_slice"] == {
        "cache": {"shape": [2, 3], "dtype": "float32", "changed": True},
        "table": {"shape": [2, 3], "dtype": "float32", "changed": False},
    }


def use(shape=(2, 3), dtype="float32", changed=True):
    return {"shape": shape, "dtype": dtype, "changed": changed}


def test_buffers_of_one_name_and_form_are_common():
    read = use(changed=False)
    assert find_common({"a": {"x": use()}, "b": {"x": use()}}) == {"x": ("a", "b")}
    assert find_common({"a": {"x": read}, "b": {"x": use()}}) == {"x": ("a", "b")}
    assert find_common({"a": {"x": read}, "b": {"x": read}}) == {}
    assert find_common({"a": {"x": use()}, "b": {"y": use()}}) == {}
    assert find_common({"a": {"x": use()}, "b": {"x": use((4,))}}) == {}
    assert find_common({"a": {"x": use()}, "b": {"x": use(dtype="float16")}}) == {}
    both = {"a": {"x": use((4,))}, "b": {"x": read}, "c": {"x": use()}, "d": {"x": use()}}
    assert find_common(both) == {"x": ("b", "c", "d")}
