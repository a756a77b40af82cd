"""A gallery of well-known models, each built as a package and compared with ExecuTorch's own call.

See `python -m examples --help`; the results are in docs/guides/gallery.md.
"""
