"""Trained models, each built in float and in int8 and judged on real inputs, by its figures and by
what it is for. `python -m examples.trained --help`; the results are in docs/guides/gallery.md."""
