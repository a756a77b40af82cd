"""Compiles programs into objects and links them into packages. Knows no plan and no workspace."""
