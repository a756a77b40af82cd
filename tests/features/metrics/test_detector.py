"""An int8 detector judged by its mean average precision: one package agrees in its numbers but no
longer detects anything; the other diverges in its numbers but detects as before."""

import json

import pytest

from tests.support.bench import REPOSITORY, SAMPLES, Bench

pytest.importorskip("faster_coco_eval")
pytestmark = pytest.mark.slow
# Squares of 128 in 512 pixels, which one convolution finds and locates. With `joined`, boxes and
# scores are one tensor, as many detectors return them: int8 then gives both the scale of the boxes.
MODEL = """
import torch
from torch import nn
from torch.export import export

INPUTS = []


class Detector(nn.Module):
    def __init__(self, joined):
        super().__init__()
        self.joined = joined
        self.place = nn.Conv2d(1, 2, 8, stride=4, bias=False)
        self.score = nn.Conv2d(1, 1, 8, stride=4)
        ramp = (torch.arange(8) - 3.5).expand(8, 8) / 10
        self.place.weight.data = torch.stack([ramp, ramp.T])[:, None].clone()
        self.score.weight.data.fill_(1.3 / 64)
        self.score.bias.data.fill_(-0.5)
        self.head = nn.Conv2d(3, 3, 1, bias=False)
        self.head.weight.data = torch.eye(3)[:, :, None, None].clone()
        cells = 64.0 * torch.arange(7) + 64
        grid = torch.stack(torch.meshgrid(cells, cells, indexing="xy"))
        self.register_buffer("centers", grid[None])

    def forward(self, image):
        centers = self.centers + self.place(image)
        scores = torch.relu(self.score(image))
        if self.joined:
            return self.head(torch.cat([centers, scores], 1))
        return centers, scores


def draw(number):
    generator = torch.Generator().manual_seed(number)
    x, y = (4 * torch.randint(7, (2,), generator=generator)).tolist()
    image = 0.1 * torch.rand(1, 1, 32, 32, generator=generator)
    image[0, 0, y : y + 8, x : x + 8] += 0.9
    return image, [16.0 * x, 16.0 * y, 128.0, 128.0]


def export_methods(joined):
    return {"detect": export(Detector(joined).eval().requires_grad_(False), (draw(0)[0],))}


def example_inputs(method):
    return [(draw(number)[0],) for number in range(4)]


calibration_inputs = example_inputs
"""
# Appended to the guide's file: the data and the decoding of this detector.
METRIC = """
from models.detector import draw

suppress = predict


def data(method):
    for number in range(100, 140):
        image, box = draw(number)
        yield image, [box]


class Decoder:
    def __init__(self, package):
        self.package = package

    def detect(self, image):
        returned = self.package.detect(image)
        if isinstance(returned, torch.Tensor):
            returned = returned[:, :2], returned[:, 2:]
        centers, scores = (value[0].flatten(1).T for value in returned)
        return torch.cat([centers - 64, torch.full_like(centers, 128)], 1), scores[:, 0]


def predict(package, inputs):
    return suppress(Decoder(package), inputs)
"""
CONFIG = """
model: detector
export: {{joined: {joined}}}
methods:
  detect: {{partitioners: [xnnpack], quantize: {{quantizer: xnnpack}}}}
validate:
  latency: {{seconds: 0}}
  {limits}metrics: {{map50: {{max_drop: 10%}}}}
"""


def find_guide_file():
    """Return the guide's metric, which reads no files here."""
    guide = (REPOSITORY / "docs" / "guides" / "measure-what-matters.md").read_text()
    return (
        guide.split("`metrics/map50.py`\n\n```python\n")[1]
        .split("```")[0]
        .replace('"heldout/*.pt"', "")
    )


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """The reports of both packages; only the joined one has a limit on its numbers."""
    bench = Bench(tmp_path_factory.mktemp("detector"), allow="")
    for name, text in {
        "dodo.py": (SAMPLES / "pair" / "dodo.py").read_text(),
        "models/detector.py": MODEL,
        "metrics/map50.py": find_guide_file() + METRIC,
        "partition_configs/joined.yaml": CONFIG.format(joined="true", limits="min_sqnr: 45\n  "),
        "partition_configs/apart.yaml": CONFIG.format(joined="false", limits=""),
    }.items():
        (bench.root / name).parent.mkdir(exist_ok=True)
        (bench.root / name).write_text(text)
    assert bench.doit() == 1, bench.output
    return {
        name: json.loads((bench.root / "build" / name / "report.json").read_text())
        for name in ("joined", "apart")
    }


def test_numbers_agree_and_the_detector_fails(reports):
    report = reports["joined"]
    (method,), (row,) = report["methods"], report["metrics"]
    assert method["quantization"]["verdict"] == "passed" and method["sqnr_db"] > 45
    assert (row["source"], row["value"], row["verdict"]) == (1, 0, "failed")
    assert report["verdict"] == "failed" and report["failures"] == [row["sentence"]]


def test_numbers_diverge_and_the_detector_holds(reports):
    report = reports["apart"]
    (method,), (row,) = report["methods"], report["metrics"]
    assert method["sqnr_db"] < reports["joined"]["methods"][0]["sqnr_db"] < 80  # float32's limit
    assert (row["source"], row["value"], row["verdict"]) == (1, 1, "passed")
    assert report["verdict"] == "passed"
