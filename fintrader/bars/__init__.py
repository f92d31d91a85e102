"""Bars as files and vendors deliver them, and the faults they may hold. No torch."""
