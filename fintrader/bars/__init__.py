"""Bars as files and vendors deliver them, and the checks that find their faults. Needs no torch."""
