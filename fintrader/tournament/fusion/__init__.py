"""Learner fusion: one pod on several devices, in threads of its process, or in one process for each
device."""
