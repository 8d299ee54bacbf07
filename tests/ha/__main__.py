"""`python tests/ha failover|rolling|overload ...`: when a service dies, is replaced, or is flooded."""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parent.parent)

from ha.command import main  # noqa: E402  # found by the line above

if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
