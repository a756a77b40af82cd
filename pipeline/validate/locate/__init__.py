"""Where a package goes wrong: from a failure to an operator, a line, a delegate, a byte."""
