"""`python tests/chaos --kills N --servers 1|3 --seed n`: break a real system again and again, and judge what it did."""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parent.parent)

from chaos.command import main  # noqa: E402  # found by the line above

if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
