"""Traces a failure of a package to an operator, a line, a delegate, a byte."""
