"""What comes out: a calibration with its certificate and its cost, and how good its sets are on labelled data."""
