"""Exported programs and model sources: archives, signatures, inputs, nodes and source lines."""
