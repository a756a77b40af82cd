"""The doit tasks, the doit runner, the console and the verbs."""
