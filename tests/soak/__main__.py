"""`python tests/soak --cycles N --seed n`: make and unmake slices, kill the agent at every step, look for leaks."""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parent.parent)

from soak.command import main  # noqa: E402  # found by the line above

if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
