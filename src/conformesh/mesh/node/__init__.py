"""A device at work: from its folder to a certified threshold, once or for as long as it stays up."""
