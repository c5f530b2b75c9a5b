"""`python -m evenfed`."""

from evenfed.cli import main

if __name__ == "__main__":
    main()
