"""`python tests/simulation --seeds N --from n --jobs j`: runs seeds, shows the first failing one, counts violations."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path = [entry for entry in sys.path if Path(entry or ".").resolve() != Path(__file__).resolve().parent]

from simulation.harness.command import main  # noqa: E402  # found by the line above

if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
