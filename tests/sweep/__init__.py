"""Small programs of every kind that `torch.export` supports, against ExecuTorch's joint call.

`python -m tests.sweep` exports each case and lowers it twice: with ExecuTorch's own call, and with
`doit lower` from the archive of the case. It counts which cases both lower, and to which bytes.
`cases_*.py` hold the cases by kind; each case is a function and has its name.
"""
