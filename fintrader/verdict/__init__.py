"""Tests of skill on returns: alpha, Sharpe ratios, resampling. numpy, scipy and pandas only."""

LEVEL = 0.05
"""Probability that all looks at one window together may call luck skill; `verdict.alpha` divides
it among the looks."""
