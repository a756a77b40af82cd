"""Performing actions: worker processes and what they do."""
