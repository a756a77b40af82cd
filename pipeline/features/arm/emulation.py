"""Sets up Arm's emulation layers, with which any Vulkan driver can run VGF.

`eval "$(python -m pte_pipeline.emulation FOLDER)"` sets them up for a shell.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from contextlib import suppress
from pathlib import Path

from pipeline.backends.host import package_folders
from pipeline.backends.vulkan_driver import has_driver, has_loader, manifests, paths_of

# Instance layers in the order in which calls pass through them, with the names of their folders.
LAYERS = {
    "VK_LAYER_ML_Graph_Emulation": "graph",
    "VK_LAYER_ML_Tensor_Emulation": "tensor",
}
_SETUP = 'eval "$(python -m pte_pipeline.emulation FOLDER)" sets it up'


def missing() -> str:
    """Return why this machine can't run VGF, or "" if it can.

    Runs nothing, so a driver that is too old only fails when a method runs.
    """
    if not has_loader():
        return "it needs the Vulkan loader (libvulkan.so.1), a driver and Arm's emulation layers"
    if not has_driver():
        return "it needs a Vulkan driver, such as mesa's lavapipe, version 25 or later"
    if not LAYERS.keys() <= set(
        os.environ.get("VK_INSTANCE_LAYERS", "").split(os.pathsep)
    ):
        return f"VK_INSTANCE_LAYERS lacks {' and '.join(LAYERS)}; {_SETUP}"
    layers = set()
    # The paths are the user's, so a damaged manifest in one of them must not fail the check.
    for path in manifests(*paths_of("VK_LAYER_PATH"), *paths_of("VK_ADD_LAYER_PATH")):
        with suppress(OSError, ValueError, KeyError, TypeError):
            layers.add(json.loads(path.read_text(encoding="utf-8"))["layer"]["name"])
    if not LAYERS.keys() <= layers:
        return f"VK_LAYER_PATH leads to no manifests of the emulation layers; {_SETUP}"
    return ""


def set_up(folder: Path) -> dict[str, str]:
    """Write the layers' manifests to separate folders; return variables that activate the layers.

    The Vulkan loader reads these environment variables.

    The wheel's manifests name their libraries without a folder, so the loader would only find them
    through LD_LIBRARY_PATH, which affects every library.

    Raises FileNotFoundError if the wheel isn't installed.
    """
    folders = package_folders("emulation_layer")
    if not folders:
        raise FileNotFoundError("no emulation layers: pip install 'pte-pipeline[vgf]'")
    deployed = folders[0] / "deploy"
    for path in sorted(
        (deployed / "share" / "vulkan" / "explicit_layer.d").glob("*.json")
    ):
        manifest = json.loads(path.read_text(encoding="utf-8"))
        layer = manifest["layer"]
        layer["library_path"] = str(deployed / "lib" / layer["library_path"])
        target = folder / LAYERS[layer["name"]] / path.name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(json.dumps(manifest), encoding="utf-8")
    paths = (str(folder.absolute() / name) for name in LAYERS.values())
    return {
        "VK_LAYER_PATH": os.pathsep.join(paths),
        "VK_INSTANCE_LAYERS": os.pathsep.join(reversed(LAYERS)),
    }


def main(words: list[str]) -> None:
    """Set up the layers in a folder, and print the shell's export commands."""
    if len(words) != 1:
        sys.exit("usage: python -m pte_pipeline.emulation FOLDER")
    for name, value in set_up(Path(words[0])).items():
        print(f"export {name}={shlex.quote(value)}")


if __name__ == "__main__":
    main(sys.argv[1:])
