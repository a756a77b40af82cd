"""The records that a build leaves in build/, and their readers. Imports no torch."""
