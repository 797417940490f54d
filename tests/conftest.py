"""What several folders of tests share is imported as ``tests.…``, from wherever pytest runs."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
