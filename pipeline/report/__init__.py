"""The records that a build leaves in build/, and their readers for people and CI. Imports no
torch."""
