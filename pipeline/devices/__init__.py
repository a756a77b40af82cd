"""Devices: what can run a lowered method, each behind one interface (docs/writing-a-device.md)."""
