"""Package configs: files, composition, models and their checks. No torch."""
