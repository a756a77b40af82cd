"""User code in a process of its own, and all that it touches."""
