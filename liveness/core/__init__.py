"""The pure half: no clock, no socket, no file, no trio. It is told; it answers."""
