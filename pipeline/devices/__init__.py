"""Devices: what can run a lowered method, each behind one interface
(docs/guides/writing-a-device.md)."""
