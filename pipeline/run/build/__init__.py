"""The actions that make a package: export, quantize, compile, link."""
