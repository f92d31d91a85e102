"""Compiled CPU passes of networks and losses; each has a torch twin that is tested against it."""
