"""Exported programs and model sources: reading, signatures, inputs, nodes, lines of the source."""
