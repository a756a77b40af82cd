"""The registry of preprocess functions and their cache."""
