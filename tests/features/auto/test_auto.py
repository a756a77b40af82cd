"""`doit auto` builds at each save, and only then."""

from types import SimpleNamespace

from pipeline.features.auto import watch as auto


def write(root, name, text="x"):
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_it_builds_at_each_save(tmp_path, monkeypatch):
    """A save during a build counts too; files that the build writes don't."""
    root, store = tmp_path / "shop", tmp_path / "shop" / "store"
    for name in ("models/a.py", "venv/pyvenv.cfg", "venv/lib.py", "store/blob", "build/a.pte"):
        write(root, name)
    builds = []

    def build(words):
        builds.append(list(words))
        for name in ("build/a.pte", "store/blob", ".git/index", "models/__pycache__/a.pyc"):
            write(root, name, f"{len(builds)} builds")
        write(root, "venv/lib.py", f"{len(builds)} builds")
        if len(builds) == 1:
            write(root, "partition_configs/a.yaml", "saved while it builds")

    def save(_):
        if len(builds) == 2 and (root / "models/a.py").read_text() == "x":
            write(root, "models/a.py", "saved while it waits")

    monkeypatch.setattr(auto, "_build", build)
    monkeypatch.setattr(auto, "time", SimpleNamespace(sleep=save))
    plan = SimpleNamespace(
        packages=("a",),
        workspace=SimpleNamespace(
            root=root, build=root / "build", store=SimpleNamespace(root=store)
        ),
    )
    lines = auto.run(plan, ["a"])
    assert [next(lines) for _ in range(6)] == [
        "building; Ctrl-C ends",
        "waiting for a save",
        "partition_configs/a.yaml changed",
        "waiting for a save",
        "models/a.py changed",
        "waiting for a save",
    ]
    assert builds == [["a"], ["a"], ["a"]]
