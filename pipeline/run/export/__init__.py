"""The inputs of exporters."""
