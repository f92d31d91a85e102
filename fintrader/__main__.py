"""`python -m fintrader` is the `fintrader` command."""

from fintrader.cli import main

if __name__ == "__main__":
    main()
