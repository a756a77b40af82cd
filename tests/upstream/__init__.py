"""ExecuTorch's own operator tests as methods of packages, against ExecuTorch's joint call.

`python -m tests.upstream` collects every program that `backends/test/suite` and
`backends/xnnpack/test/ops` lower, in the installed ExecuTorch or a checkout of it, and makes
packages of them. It counts which ones this pipeline lowers, to which bytes, and how it judges the
result.
"""
