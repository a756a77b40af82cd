"""Signatures of programs, as packages record them."""

import json

from pipeline.features.loading.method_spec import read_signature
from pipeline.program.recorded_signature import record_signature


def make_method_spec(program, reexported=False):
    """Return the signature of a program, read from its record."""
    return read_signature(json.loads(json.dumps(record_signature(program, reexported))))
