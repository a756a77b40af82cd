"""Package configs: their files, composition, models and checks. Imports no torch."""
