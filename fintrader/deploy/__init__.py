"""A run that trades on: its policy frozen with all it depends on, its orders journalled, its drift
told.

Import what is needed from its modules; `journal` and `status` need no torch.
"""
