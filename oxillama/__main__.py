"""Lets `python -m oxillama` do what the `oxillama` command does."""

import sys


def main() -> int:
    """Entry point of the command; Ctrl-C while its modules are imported ends it quietly."""
    try:
        from oxillama.cli import main as command
    except KeyboardInterrupt:
        return 130
    except ModuleNotFoundError as error:
        from oxillama.errors import not_compiled

        if (refused := not_compiled(error)) is None:
            raise
        print(refused, file=sys.stderr)
        return 1
    return command()


if __name__ == "__main__":
    sys.exit(main())
