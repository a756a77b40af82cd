"""Records an exported program and its eager reference, and finds where they part."""
