"""Compile programs to objects, and link objects to packages. Knows no plan and no workspace."""
