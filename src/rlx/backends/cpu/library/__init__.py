"""Library kernels, each a dedicated algorithm: FFT, sort, NMS, resize, pooling, ROI, trees."""
