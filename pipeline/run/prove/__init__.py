"""The actions that say whether a package is its source: measure, validate."""
