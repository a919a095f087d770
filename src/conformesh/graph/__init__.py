"""Who talks to whom: networks, the shapes they come in, weights for averaging, and spectra."""
