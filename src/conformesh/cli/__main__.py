"""``python -m conformesh.cli``."""

from conformesh.cli import main

main()
