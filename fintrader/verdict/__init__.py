"""Tests of skill on returns: alpha, Sharpe ratios, resampling. numpy, scipy and pandas only."""

LEVEL = 0.05
"""Probability with which all looks at one window together may call luck skill; `verdict.alpha`
spends it, look by look."""
