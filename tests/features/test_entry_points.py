"""Entry points of a group are found as distributions are installed, edited and removed."""

import sys

import pytest

from pipeline.moments import installed_entry_points

GROUP = "acme.group"


@pytest.fixture
def site(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    return tmp_path


def install(site, name, text):
    folder = site / f"{name}-1.0.dist-info"
    folder.mkdir(exist_ok=True)
    (folder / "METADATA").write_text(f"Name: {name}\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text(text)
    return folder


def find():
    return {p.name: (p.value, p.dist.name) for p in installed_entry_points.__wrapped__(GROUP)}


def test_entry_points_follow_what_is_installed(site):
    assert find() == {}
    install(site, "other", "[acme.other]\na = m:a\n")
    assert find() == {}
    folder = install(site, "acme", f"[{GROUP}]\na = m:a\n")
    assert find() == {"a": ("m:a", "acme")}
    (folder / "entry_points.txt").write_text(f"[{GROUP}]\nb = m:b\n")  # edited in place
    assert find() == {"b": ("m:b", "acme")}
    (folder / "entry_points.txt").unlink()
    assert find() == {}


def test_the_first_distribution_of_a_name_counts(site, tmp_path, monkeypatch):
    install(site, "acme", f"[{GROUP}]\na = later:a\n")
    first = tmp_path / "first"
    first.mkdir()
    monkeypatch.setattr(sys, "path", [str(first), *sys.path])
    install(first, "acme", "[acme.other]\na = m:a\n")
    assert find() == {}
