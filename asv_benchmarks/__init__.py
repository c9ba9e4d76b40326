"""Benchmarks for asv, which wants its folder to be a package.

Each module also runs and is imported by itself, so its neighbours are found by name.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
