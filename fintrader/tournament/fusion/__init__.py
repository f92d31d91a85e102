"""Learner fusion: one pod on several devices, in threads of its process or in a process a
device."""
