"""A gallery: models that nobody here wrote, each built as a package and compared with what
ExecuTorch's own call makes of it. `python -m examples --help`; the results are in
docs/guides/gallery.md."""
