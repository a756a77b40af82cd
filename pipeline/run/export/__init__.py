"""Exporting: the exporter, in a process of its own, and the references beside it."""
