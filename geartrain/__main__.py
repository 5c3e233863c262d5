"""`python -m geartrain` is the command line."""

from geartrain.cli import main

if __name__ == "__main__":
    main()
