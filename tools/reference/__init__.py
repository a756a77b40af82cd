"""The parts of docs/ that are made from code: every key, option, gate, setting, verb and error.

`python -m tools.reference` writes them, each between its marks in a page, whose other parts are
written by hand; tests/docs/test_reference.py holds pages and code together.
"""
