"""Learner and pipeline parallelism of one agent (ElegantRL-Podracer, section 4)."""
