"""Demonstrations: held in memory, read from and written to Minari and other formats, recorded from experts."""
