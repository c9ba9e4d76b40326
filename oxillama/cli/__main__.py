"""Lets `python -m oxillama.cli` do what the `oxillama` command does."""

import sys

from oxillama.cli import main

sys.exit(main())
