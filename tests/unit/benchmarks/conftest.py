"""Scripts of recipes/benchmarks/ are imported as modules from that folder, as when a user runs them."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "recipes" / "benchmarks"))
