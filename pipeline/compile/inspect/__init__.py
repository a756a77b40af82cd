"""What every byte of a package is."""
