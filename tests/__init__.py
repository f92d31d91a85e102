"""Tests of all packages, each in a folder of its name."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
"""The repository."""
