"""The parts of docs/ generated from code: all keys, options, gates, settings, verbs and errors.

`python -m tools.reference` writes each part between its markers in a page; the rest of the page is
written by hand. tests/docs/test_reference.py checks that pages and code agree.
"""
