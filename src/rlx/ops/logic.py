"""The logic page."""
