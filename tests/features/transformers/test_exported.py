"""Models exported by transformers' own exporters: their bytes match transformers', and its runner
can load them."""

import importlib.util
import json
from types import SimpleNamespace

import pytest
import torch

from pipeline.features.transformers import patched_lowering
from pipeline.features.transformers.cache_trees import _describe, _fill, use_cache_trees
from pipeline.features.transformers.exported import Exported
from pipeline.features.transformers.moved_examples import move_example
from pipeline.features.transformers.patched_lowering import PatchedLowering
from pipeline.features.transformers.recorded import read_record, write_record
from pipeline.features.transformers.sample_inputs import make_sample_inputs
from pipeline.features.transformers.source_file import read_source
from pipeline.store.errors import PipelineError, SourceError
from tests.support.bench import Bench
from tests.support.torchvision import import_torchvision

needs = pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None, reason="the extra `gallery` is not installed"
)
RECORD = {"version": "5.24.0", "patches": ["executorch"], "component": "model", "metadata": {}}


def unlowered(metadata):
    return {"forward": SimpleNamespace(program=SimpleNamespace(graph_module=metadata))}


def graph_with(record):
    graph = SimpleNamespace(meta={"custom": {"other": 1}})
    write_record(graph.meta, record)
    return graph


# What an export records


def test_a_record_stands_beside_what_others_record():
    graph = graph_with(RECORD)
    assert read_record("forward", graph.meta) == RECORD and graph.meta["custom"]["other"] == 1
    assert read_record("forward", {}) is None


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({**RECORD, "patches": ["os.system"]}, "unknown patches of transformers, os.system; kno"),
        ({**RECORD, "patches": "executorch"}, "names no patches and version of transformers"),
        ({**RECORD, "version": None}, "names no patches and version of transformers"),
        ("executorch", "names no patches and version of transformers"),
    ],
)
def test_an_archive_chooses_among_known_patches(record, message):
    with pytest.raises(SourceError, match=message):
        read_record("forward", {"custom": {"transformers": record}})


def test_another_release_of_transformers_lowers_nothing(monkeypatch):
    monkeypatch.setattr(patched_lowering, "version_of", lambda name: "not installed")
    with pytest.raises(SourceError, match=r"patches of transformers 5\.24\.0.*not installed"):
        PatchedLowering().add_sources(unlowered(graph_with(RECORD)))


def test_a_cache_is_data_and_counts_what_is_no_tensor():
    context = {"_t": "obj", "p": "os:system", "s": {"keys": {"_t": "tensor", "i": 0}, "size": 8}}
    tensor = torch.ones(2)
    leaves = []
    assert _describe(_fill(context, [tensor]), leaves) == context and leaves == [tensor]
    leaves = []
    assert _describe(_fill(context, [3]), leaves)["s"] == {"keys": 3, "size": 8} and not leaves


def test_plain_arguments_stay_as_they_are():
    linear = torch.nn.Linear(2, 2).requires_grad_(False)
    program = torch.export.export(linear, (torch.ones(1, 2),))
    before = program.call_spec
    use_cache_trees(program)
    assert program.call_spec == before


# Sources


@pytest.fixture
def source(tmp_path):
    (tmp_path / "models").mkdir()
    return tmp_path / "models" / "smol.yaml"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("task: fill-mask", r"smol\.yaml: names no folder; set `transformers: checkpoints/"),
        ("", "names no folder"),
        (
            "transformers: a\nrevison: b",
            r"smol\.yaml:2: revison: unknown key; did you mean 'revision'",
        ),
        ("transformers: a\nrevision: 12", "revision: 12, must be a commit, in quotes"),
        ("transformers: a\nmax_cache_len: true", "max_cache_len: true, must be a number"),
        ("transformers: a\ndtype: int8", "dtype: 'int8', must be one of float32, float16, bf"),
    ],
)
def test_mistakes_in_a_source_are_told_with_their_lines(source, text, message):
    source.write_text(text)
    with pytest.raises(PipelineError, match=message):
        read_source(str(source))


def test_parameters_of_a_config_come_before_what_the_file_says(source):
    source.write_text("transformers: checkpoints/smol\ntask: text-generation")
    export = read_source(str(source))
    with pytest.raises(SourceError, match="export: max_len: unknown key; did you mean 'max_cache"):
        export(max_len=3)
    with pytest.raises(SourceError, match="task: no 'text'; known: audio"):
        export(task="text")
    with pytest.raises(SourceError, match=r"checkpoints/smol: no folder with a config\.json"):
        export(max_cache_len=3)


def test_a_config_cannot_choose_code(source):
    source.write_text("transformers: checkpoints/smol\ntrust_remote_code: true")
    with pytest.raises(SourceError) as raised:
        read_source(str(source))(transformers="checkpoints/other", revision="abc", task="text")
    name = "models/smol.yaml"
    assert str(raised.value).splitlines() == [
        f"{name}: export: {key}: chooses code that runs, so only {name} can set it"
        for key in ("transformers", "revision")
    ]
    with pytest.raises(SourceError, match="export: trust_remote_code: chooses code"):
        read_source(str(source))(trust_remote_code=False)


def test_a_folder_is_held_to_its_revision(tmp_path):
    with pytest.raises(
        SourceError,
        match=r"revision abc: the downloaded revision is unknown.*hf "
        "down",
    ):
        Exported(tmp_path, revision="abc")
    note = tmp_path / ".cache/huggingface/download/config.json.metadata"
    note.parent.mkdir(parents=True)
    note.write_text("abc\ntag\n1.0\n")
    Exported(tmp_path, revision="abc")
    with pytest.raises(SourceError, match=r"revision def: config\.json is from abc"):
        Exported(tmp_path, revision="def")


# Inputs


class Seeing(torch.nn.Module):
    """Makes a feature of each half of an image, for a text with placeholders for them."""

    def __init__(self, **config):
        super().__init__()
        text, vision = SimpleNamespace(vocab_size=4), SimpleNamespace(image_size=4)
        self.config = SimpleNamespace(
            model_type="seeing", text_config=text, vision_config=vision, image_token_id=0, **config
        )
        self.config.get_text_config = lambda: text

    def get_image_features(self, pixel_values):
        return SimpleNamespace(pooler_output=list(pixel_values.reshape(1, 2, -1)))

    def forward(self, input_ids, pixel_values):
        return input_ids, pixel_values


class Cutting(Seeing):
    """Takes an image that its processor has cut up."""

    def get_image_features(self, pixel_values, image_sizes):
        return super().get_image_features(pixel_values)


def test_a_prompt_has_a_place_for_each_feature_of_an_image():
    inputs = make_sample_inputs(Seeing())
    assert list(inputs) == ["input_ids", "pixel_values"]  # the arguments of `forward`
    tokens = inputs["input_ids"][0]
    assert len(tokens) == 10 and (tokens == 0).nonzero()[:, 0].tolist() == [1, 2]
    assert inputs["pixel_values"].shape == (1, 3, 4, 4)


def test_inputs_of_one_kind_are_made_up_of_the_config():
    config = SimpleNamespace(image_size=[8, 16], num_channels=1)
    model = SimpleNamespace(main_input_name="pixel_values", config=config)
    assert make_sample_inputs(model)["pixel_values"].shape == (1, 1, 8, 16)


@pytest.mark.parametrize("model", [Cutting(), Seeing(audio_config=None)])
def test_inputs_that_a_processor_alone_can_make_are_asked_for(model):
    with pytest.raises(SourceError, match=r"no inputs can be generated for it.*inputs=\.\.\.\)"):
        make_sample_inputs(model)


@needs
@pytest.mark.slow
@pytest.mark.parametrize("name", ["llava", "smolvlm", "qwen2_audio"])
def test_models_take_the_inputs_that_are_made_up_for_them(name):
    from tests.features.transformers.architectures import MODELS

    model = MODELS[name][1]().model
    inputs = make_sample_inputs(model)
    with torch.no_grad():
        if model.can_generate():
            model.generate(**inputs, max_new_tokens=1)
        else:
            model(**inputs)


# Examples


class StaticLayer:
    """Like a layer of transformers' caches, with room for `max_cache_len` positions."""

    def __init__(self, counter):
        self.max_cache_len = 4
        self.cumulative_length = counter


def program_of(keywords):
    """Return the part of a program from which examples are made."""
    graph = graph_with(RECORD)
    return SimpleNamespace(example_inputs=((), keywords), graph_module=graph)


@pytest.mark.parametrize(("length", "counter"), [(2, 2), (3, 2), (4, None)])
def test_the_second_example_of_a_static_cache_is_one_position_further(length, counter):
    layers = [StaticLayer(torch.tensor(1)), StaticLayer(1)]  # one counts outside tensors
    cache = SimpleNamespace(layers=layers)
    keywords = {"cache": cache, "input_ids": torch.zeros(1, length - 1, dtype=torch.int64)}
    examples = move_example(program_of(keywords))
    moved = [layer for _, words in examples for layer in words["cache"].layers]
    if counter is None:  # the cache is full
        assert not moved
    else:
        assert [int(layer.cumulative_length) for layer in moved] == [counter, 1]
    assert int(layers[0].cumulative_length) == 1


def test_the_second_example_of_a_decoder_begins_with_another_token():
    ((_, keywords),) = move_example(program_of({"decoder_input_ids": torch.tensor([[0, 3]])}))
    assert keywords["decoder_input_ids"].tolist() == [[1, 2]]
    assert not move_example(program_of({"input_ids": torch.tensor([[3]])}))


# Builds


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A tiny ViT, whose bytes depend on the patches, as a package and as a folder."""
    import_torchvision()
    import transformers as hf

    bench = Bench(tmp_path_factory.mktemp("workspace"))
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = hf.ViTConfig(**sizes, intermediate_size=16, image_size=8, patch_size=4, num_labels=3)
    torch.manual_seed(0)
    hf.ViTForImageClassification(config).save_pretrained(bench.root / "checkpoints" / "vit")
    files = {
        "dodo.py": "from pte_pipeline.tasks import *\n",
        "models/vit.yaml": "transformers: checkpoints/vit\ntask: image-classification\n",
        "partition_configs/vit.yaml": "model: vit\ntarget: host\n"
        "methods: {forward: {partitioners: [xnnpack]}}\n",
    }
    for name, text in files.items():
        path = bench.root / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert bench.doit("lower") == 0, bench.output
    assert bench.doit("pretrained", "vit") == 0, bench.output
    return bench


def load_vit(bench):
    from transformers import AutoModelForImageClassification

    model = AutoModelForImageClassification.from_pretrained(bench.root / "checkpoints" / "vit")
    return model.eval()


@needs
@pytest.mark.slow
def test_bytes_are_those_of_transformers_and_its_runner_takes_them(built, tmp_path):
    from transformers.exporters.base import ExportedModel
    from transformers.exporters.exporter_executorch import ExecutorchConfig, ExecutorchExporter

    model = load_vit(built)
    inputs = make_sample_inputs(model)
    theirs = ExecutorchExporter().export(model, dict(inputs), ExecutorchConfig())
    theirs.save_pretrained(tmp_path)
    folder = built.root / "build" / "vit" / "pretrained"
    expected = (tmp_path / "model.pte").read_bytes()
    assert built.bytes_of("vit", "vit.pte") == expected
    assert (folder / "model.pte").read_bytes() == expected
    written, saved = (json.loads((f / "export.json").read_text()) for f in (folder, tmp_path))
    assert written == saved
    loaded = ExportedModel.from_pretrained(folder)
    with torch.no_grad():
        torch.testing.assert_close(
            loaded(**inputs).logits, model(**inputs).logits, atol=1e-5, rtol=1e-4
        )


@needs
@pytest.mark.slow
def test_code_in_a_folder_is_not_run(tmp_path):
    config = {"model_type": "own", "auto_map": {"AutoConfig": "own.Own", "AutoModel": "own.Own"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "own.py").write_text("raise SystemExit('it ran')")
    with pytest.raises(SourceError, match=r"names code of its own.*trust_remote_code: true"):
        Exported(tmp_path).export_methods()
