"""A multi-method batch build system for ExecuTorch packages."""
