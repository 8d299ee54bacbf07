"""Tables of long sentences for `parametrize`: in tuples each cell would take a line, and two more hold brackets."""


def text_rows(text: str) -> list[tuple[str, ...]]:
    """A line at the margin begins a row, an indented one is its next cell, and a deeper one goes on with that cell."""
    rows: list[list[str]] = []
    for line in text.strip("\n").splitlines():
        indent, words = len(line) - len(line.lstrip()), line.strip()
        if indent == 0:
            rows.append([words])
        elif indent == 2:
            rows[-1].append(words)
        else:
            rows[-1][-1] += f" {words}"
    return [tuple(row) for row in rows]
