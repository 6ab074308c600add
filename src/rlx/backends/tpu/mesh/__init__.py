"""Programs that run on a mesh of devices: which axes of which values are split, and why."""
