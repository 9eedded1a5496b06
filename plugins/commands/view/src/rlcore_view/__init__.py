"""Runs in a browser, offline, from their folders alone."""
