"""The plan: the actions that sources and configs call for, their keys and status. No torch."""
