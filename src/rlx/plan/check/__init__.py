"""The plan checker, which shares no code with the planner."""
