"""Entry point of `python -m fintrader`: the `fintrader` command."""

from fintrader.cli import main

if __name__ == "__main__":
    main()
