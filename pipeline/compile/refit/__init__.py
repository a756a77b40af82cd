"""New weights for a compiled unit, without lowering: how each stored blob comes from constants."""
