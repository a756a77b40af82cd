"""A gallery: models that nobody here wrote, each built as a package and compared with what
ExecuTorch's own call makes of it. `python -m examples --help`; docs/gallery.md has the results."""
