"""Pods, a leaderboard, an ensemble: the papers' tournament, built so that no kill can corrupt it.

Import from the modules; this package imports nothing by itself, so that a pod's process starts
quickly.
"""
