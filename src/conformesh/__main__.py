"""``python -m conformesh`` is the command line."""

from conformesh.cli import main

if __name__ == "__main__":
    main()
