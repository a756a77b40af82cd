"""Model sources for transformers, from folders made here."""

import importlib.util
from types import SimpleNamespace

import pytest
import torch

from pipeline.features.transformers import hugging_face
from pipeline.features.transformers.hugging_face import CausalLM, OneForward, Seq2SeqLM
from pipeline.store.errors import SourceError
from tests.support.torchvision import import_torchvision

installed = importlib.util.find_spec("transformers") is not None
needs = pytest.mark.skipif(not installed, reason="the extra `gallery` is not installed")


@pytest.mark.skipif(installed, reason="transformers is installed")
def test_without_transformers_the_line_says_how_to_get_it():
    with pytest.raises(SourceError, match="transformers is not installed; `pip install"):
        CausalLM(torch.nn.Linear(1, 1)).export_methods()


def test_a_folder_that_is_not_there_is_not_looked_for_on_a_hub(tmp_path):
    for source in (CausalLM(tmp_path / "Qwen"), Seq2SeqLM("google/t5"), OneForward("vit", {})):
        with pytest.raises(SourceError, match=r"no folder with a config\.json.*--local-dir"):
            _ = source.model


def test_no_code_of_a_folder_is_run_or_asked_about(tmp_path, monkeypatch):
    given = {}

    class Auto:
        @staticmethod
        def from_pretrained(folder, **options):
            given.update(options)
            return torch.nn.Linear(1, 1)

    monkeypatch.setattr(
        hugging_face, "import_transformers", lambda: SimpleNamespace(AutoModel=Auto)
    )
    (tmp_path / "config.json").write_text("{}")
    _ = OneForward(tmp_path, {}).model
    assert given["trust_remote_code"] is False and given["local_files_only"] is True


def test_an_unknown_method_is_told_with_the_known_ones(tmp_path):
    with pytest.raises(SourceError, match="unknown methods 'step'; known: prefill, forw"):
        CausalLM(tmp_path, methods=["step"])


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A small Qwen3 for `from_pretrained`, in bfloat16 as is usual for such folders."""
    import_torchvision()
    from transformers import AutoModelForCausalLM

    from examples.checkpoints import make_qwen3

    folder = tmp_path_factory.mktemp("qwen3")
    make_qwen3(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def source(checkpoint):
    return CausalLM(checkpoint, max_seq_len=32, methods=("prefill", "decode", "forward"))


@pytest.fixture(scope="module")
def programs(source):
    return {name: program for name, (program, _) in source.export_methods().items()}


@needs
@pytest.mark.slow
def test_lengths_are_dynamic_and_end_with_the_cache(programs):
    bounds = {
        name: [(r.lower, r.upper) for r in program.range_constraints.values()]
        for name, program in programs.items()
    }
    assert bounds == {"prefill": [(2, 31)], "decode": [], "forward": [(1, 31)]}
    for program in programs.values():
        assert not any("grad" in str(node.target) for node in program.graph.nodes)
        assert {p.dtype for p in program.state_dict.values()} == {torch.float32}


@needs
@pytest.mark.slow
def test_methods_compute_what_the_model_does(source, programs):
    tokens = torch.randint(512, (1, 9), generator=torch.Generator().manual_seed(3))
    expected = source.model(tokens).logits
    for name in ("prefill", "forward"):
        found = programs[name].module()(input_ids=tokens, cache_position=torch.arange(9))
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
    step = programs["decode"].module()
    for at in range(9):
        logits = step(input_ids=tokens[:, at : at + 1], cache_position=torch.tensor([at]))
        torch.testing.assert_close(logits[:, 0], expected[:, at], atol=1e-5, rtol=1e-4)


@needs
@pytest.mark.slow
def test_examples_fit_their_methods(source, programs):
    for name, program in programs.items():
        module = program.module()
        assert source.example_inputs(name)
        for args, kwargs in source.example_inputs(name):
            module(*args, **kwargs)


@needs
@pytest.mark.slow
def test_runners_are_answered(source):
    constants = source.constant_methods()
    assert constants["get_max_seq_len"] == 32 and constants["get_vocab_size"] == 512
    assert constants["get_bos_id"] == 1 and constants["get_eos_ids"] == [2]
    assert constants["use_kv_cache"] is True and None not in constants.values()
