"""`python tests/perf/enrolment [--agents N]`: how long a fleet is without its bus after a full restart."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path = [entry for entry in sys.path if Path(entry or ".").resolve() != HERE]
sys.path.insert(0, str(HERE.parents[1]))

from perf.enrolment.command import main  # noqa: E402  # found by the line above

if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
