"""The actions that make a package: quantize, compile, link."""
