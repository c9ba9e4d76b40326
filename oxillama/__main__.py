"""Lets `python -m oxillama` do what the `oxillama` command does."""

import sys


def main() -> int:
    """Entry point of the command; Ctrl-C while its modules are imported ends it quietly."""
    try:
        from oxillama.cli import main as command
    except KeyboardInterrupt:
        return 130
    return command()


if __name__ == "__main__":
    sys.exit(main())
