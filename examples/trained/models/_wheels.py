"""Finds files of the wheels that `wheels.txt` lists."""

from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "wheels"


def wheel_file(name: str) -> Path:
    """Return the path of a file in one of the wheels.

    Raises:
        FileNotFoundError: the wheels are not installed.
    """
    path = FOLDER / name
    if not path.exists():
        command = "pip install --no-deps --target wheels -r wheels.txt"
        raise FileNotFoundError(f"{path} is missing; in {FOLDER.parent}, run `{command}`")
    return path
