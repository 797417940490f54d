"""The program for ``spark-submit``, which takes a Python file: the jobs of ``penstock pipeline``.

``penstock pipeline script`` prints its path.
"""

from __future__ import annotations

import sys

from penstock.cli.program import main

if __name__ == "__main__":
    sys.argv[1:1] = ["pipeline"]
    main()
