"""Pods on a Ray cluster (extra `ray`)."""
