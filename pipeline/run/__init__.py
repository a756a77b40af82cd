"""Worker processes, and how they perform actions."""
