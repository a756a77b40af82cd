"""The plan: the actions that sources and configs require, their keys and their status. Imports no
torch."""
