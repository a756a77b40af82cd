"""Which actions the sources and configs call for, their keys, and why they are stale. No torch."""
