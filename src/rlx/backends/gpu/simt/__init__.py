"""The SIMT level: typed programs of one thread, their builder and their text."""
