"""`python -m ropewalk` is the `ropewalk` command."""

from ropewalk.cli import main

if __name__ == "__main__":
    main()
