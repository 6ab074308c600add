"""What the backends of whole-graph engines share: the steps of a plan as calls on their arrays."""
