"""The launcher ddprun as a Python package: the program `ddprun`, and `python -m ddprun`."""
