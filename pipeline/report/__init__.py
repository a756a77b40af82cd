"""The records that a build leaves in build/, and how people and CI servers read them. No torch."""
