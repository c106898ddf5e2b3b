"""Makes the toys importable by name, as an installed plugin's modules are."""

import sys
from pathlib import Path

TOYS = str(Path(__file__).parent / "toy")
if TOYS not in sys.path:
    sys.path.insert(0, TOYS)
