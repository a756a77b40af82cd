"""Devices: anything that can run a lowered method, behind one interface.

See docs/guides/writing-a-device.md.
"""
