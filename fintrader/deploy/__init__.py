"""Deployments: a run's policy frozen with its dependencies, its orders journalled, its drift
measured.

Import what is needed from its modules; `journal` and `status` need no torch.
"""
