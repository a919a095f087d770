"""Online conformal prediction: coverage that holds while the world drifts, device by device and for the network."""
