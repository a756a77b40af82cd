"""Trained models, each built in float and in int8, and judged on real inputs both by error figures
and by how well it does its task.

See `python -m examples.trained --help`; the results are in docs/guides/gallery.md.
"""
