"""The part of the Dockerfile language that is understood."""

from pathlib import Path

import pytest
from cluster.images.dockerfile import list_of, pairs_of, parse
from cluster.images.errors import ImageError

DOCKER = Path(__file__).resolve().parents[3] / "deploy" / "docker"


def test_the_projects_own_dockerfiles_are_understood():
    """An instruction that only engines know would end the build where there is none."""
    services, broker = (parse((DOCKER / name).read_text()) for name in ("Dockerfile", "broker.Dockerfile"))

    assert [(stage.name, stage.base) for stage in services.stages] == [
        ("build", "${BASE_IMAGE}"),
        ("1", "${BASE_IMAGE}"),
    ]
    assert list(services.arguments) == ["BASE_IMAGE"]
    assert [stage.base for stage in broker.stages] == ["scratch"]
    assert [step.word for step in broker.stages[0].steps][-2:] == ["USER", "ENTRYPOINT"]


def test_lines_are_joined_and_comments_left_out():
    """Half of a command would run."""
    (stage,) = parse("# first\nFROM scratch AS one\nRUN a \\\n    # between\n    && b\n").stages

    assert (stage.name, stage.base) == ("one", "scratch")
    assert [(step.line, step.word, step.text.split()) for step in stage.steps] == [(3, "RUN", ["a", "&&", "b"])]


def test_values_are_replaced_as_engines_do():
    """A label would say ${VERSION}."""
    (stage,) = parse('FROM scratch\nLABEL a.b="sluice-${NAME}" \\\n  c="two words" d=$NAME$GONE\n').stages
    (step,) = stage.steps
    assert pairs_of(step, {"NAME": "x"}) == {"a.b": "sluice-x", "c": "two words", "d": "x"}


def test_lists_are_told_from_texts_of_a_shell():
    """A broker's image has no shell."""
    (stage,) = parse('FROM scratch\nRUN ["/a", "b c"]\nRUN a b\n').stages
    assert [list_of(step) for step in stage.steps] == [["/a", "b c"], None]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("FROM scratch\nADD a b\n", "line 2, ADD: is not understood here"),
        ("FROM scratch\nCOPY --chown=1 a b\n", "line 2, COPY: --chown is not understood here"),
        ("FROM scratch\nRUN --mount=type=cache a\n", "line 2, RUN: --mount is not understood here"),
        ("RUN a\n", "line 1, RUN: comes before the first FROM"),
        ("FROM a b\n", "line 1, FROM: 'a b' is not"),
        ("FROM scratch\nRUN a \\\n", "line 2: the last line ends with a backslash"),
        ("ARG A\n", "the Dockerfile has no FROM"),
    ],
)
def test_what_is_not_understood_is_named_with_its_line(text, problem):
    """An image without a part of its file would be built."""
    with pytest.raises(ImageError) as caught:
        parse(text)
    assert str(caught.value).startswith(problem)


@pytest.mark.parametrize("text", ["LABEL a", "LABEL a='b'", "LABEL a=${b:-c}"])
def test_pairs_that_are_not_understood_are_an_error(text):
    """A label with a wrong value says nothing about itself."""
    (stage,) = parse(f"FROM scratch\n{text}\n").stages
    with pytest.raises(ImageError, match="line 2, LABEL"):
        pairs_of(stage.steps[0], {})
