"""What a calibration would cost: every method simulated on drawn scores, compared, and one recommended."""
