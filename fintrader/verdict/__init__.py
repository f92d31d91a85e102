"""Tests of skill on returns: alpha, Sharpe ratios, resampling. numpy, scipy and pandas only."""

LEVEL = 0.05
"""Largest probability that any of all looks at one window takes luck for skill; `verdict.alpha`
divides it among the looks."""
