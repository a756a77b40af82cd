"""Scripts for maintainers of this repository; no module of the package imports them."""
