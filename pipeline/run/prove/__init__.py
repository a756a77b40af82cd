"""The actions that decide whether a package matches its source: measure and validate."""
