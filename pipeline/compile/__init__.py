"""Compiles programs to objects and links objects to packages. Knows no plan and no workspace."""
