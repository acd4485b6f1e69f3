"""Attempts to break the commands: wrong settings, files, options and interruptions."""
