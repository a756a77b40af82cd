"""Scripts for those who work on this repository; nothing of the package imports them."""
