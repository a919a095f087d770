"""What a calibration would cost, without running it: predictions, and a planner that compares and recommends."""
