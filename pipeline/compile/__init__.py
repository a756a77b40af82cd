"""From a program to an object, and from objects to a package. Knows no plan and no workspace."""
