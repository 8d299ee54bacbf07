"""`python tests/quota`: whether tenants of one device get the time that they were promised (`make quota-proof`)."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
# The parts are found from `tests`, so that pytest and this file know them by the same names.
from quota.command import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
