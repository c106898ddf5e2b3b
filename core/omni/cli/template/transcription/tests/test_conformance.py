"""omni's conformance kit, run on this plugin's recipe: streaming is exact, a cancel frees everything, limits hold."""

import subprocess
import sys


def test_conformance() -> None:
    subprocess.run(
        [sys.executable, "-m", "pytest", "--pyargs", "omni.testing", "--recipe", "my-plugin", "-q"], check=True
    )
