"""The trio half: opens things, loops, and hands values to the core."""
