"""The plan: the actions that sources and configs require, with their keys and status. No torch."""
