"""Readers of stored runs, without torch: for the app, the report, notebooks and the command
line."""
