"""Small programs of every kind that `torch.export` takes, against ExecuTorch's joint call.

`python -m tests.sweep` exports each case, lowers it by ExecuTorch's own call and by `doit lower`
from the archive that the case was saved to, and counts what both lower, and to which bytes.
`cases_*.py` hold the cases, by kind; each is a function whose name is the case's.
"""
