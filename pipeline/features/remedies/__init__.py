"""Remedies: where a failed action failed, and how to fix errors of torch and ExecuTorch.

explain_error   the line of the model and the operator at which an action ended
remedies        adds the remedy to the text of an error
table           the known causes
"""

from __future__ import annotations

from pipeline.moments import Feature

FEATURE = Feature(
    "remedies",
    "name the model line at which an action failed, and remedies for known errors",
    explain_error="pipeline.features.remedies.explain_error:explain_error",
    add_remedy="pipeline.features.remedies.remedies:add_remedy",
)
