"""Layers: attention, normalization, convolution, pooling, resize, ROI, recurrence, losses."""
