"""Tables of long sentences for `parametrize`: in tuples each cell would take a line, and two more hold brackets."""


def text_rows(text: str) -> list[tuple[str, ...]]:
    """
    A line at the margin begins a row, one indented by 2 is its next cell, and one by 4 goes on with that cell.

    Fails on any other line, and on two rows that begin alike: as a dict they would be one.
    """
    rows: list[list[str]] = []
    for line in text.strip("\n").splitlines():
        words = line.strip()
        match len(line) - len(line.lstrip()):
            case 0 if words:
                rows.append([words])
            case 2 if rows and words:
                rows[-1].append(words)
            case 4 if rows and words:
                rows[-1][-1] += f" {words}"
            case _:
                raise AssertionError(f"no line of a table: {line!r}")
    assert len({row[0] for row in rows}) == len(rows), "two rows begin alike"
    return [tuple(row) for row in rows]


def alike(found: str, wanted: str) -> bool:
    """Whether a text is as it is wanted, where a `*` stands for anything."""
    before, star, after = wanted.partition("*")
    return found == wanted if not star else found.startswith(before) and found.endswith(after)
