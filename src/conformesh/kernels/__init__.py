"""The few hot loops, each with a slow, obvious twin in the tests."""
