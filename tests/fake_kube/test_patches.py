"""The kinds of patch, apart from any object's rules: RFC 6902, RFC 7386, strategic merge and apply."""

from typing import Any

import pytest
from fake_kube.errors import ApiError, Json
from fake_kube.requests.patch_formats import json_patch, merge_patch, strategic_merge
from fake_kube.requests.server_side_apply import Owners, apply


@pytest.mark.parametrize(
    ("document", "operations", "after"),
    [
        pytest.param({"a": 1}, [{"op": "add", "path": "/b", "value": 2}], {"a": 1, "b": 2}, id="A.1"),
        pytest.param({"a": [1, 3]}, [{"op": "add", "path": "/a/1", "value": 2}], {"a": [1, 2, 3]}, id="A.2"),
        pytest.param({"a": 1, "b": 2}, [{"op": "remove", "path": "/b"}], {"a": 1}, id="A.3"),
        pytest.param(
            {"a": [1, 2]}, [{"op": "replace", "path": "/a/0", "value": 9}], {"a": [9, 2]}, id="replace-in-list"
        ),
        pytest.param(
            {"a": {"x": 1}, "b": {}},
            [{"op": "move", "from": "/a/x", "path": "/b/y"}],
            {"a": {}, "b": {"y": 1}},
            id="A.6",
        ),
        pytest.param({"a": [1]}, [{"op": "add", "path": "/a/-", "value": 2}], {"a": [1, 2]}, id="append"),
        pytest.param({"a": [1, 2]}, [{"op": "remove", "path": "/a/-1"}], {"a": [1]}, id="from-the-end"),
        pytest.param({"a": 1}, [{"op": "test", "path": "/b", "value": None}], {"a": 1}, id="absent-is-null"),
        pytest.param({"a": 1}, [{"op": "test", "path": "/b"}], {"a": 1}, id="no-value-is-null"),
        pytest.param({"~/": 1}, [{"op": "test", "path": "/~0~1", "value": 1}], {"~/": 1}, id="escapes"),
        pytest.param(
            {"a": {"b": 1}}, [{"op": "copy", "from": "/a", "path": "/c"}], {"a": {"b": 1}, "c": {"b": 1}}, id="copy"
        ),
    ],
)
def test_a_json_patch_does_what_a_server_does(document: Json, operations: list[Json], after: Json) -> None:
    """Every operation once; and where a real server is laxer than the RFC, the server."""
    assert json_patch(document, operations) == after


@pytest.mark.parametrize(
    "operation",
    [
        {"op": "add", "path": "/x/y", "value": 1},
        {"op": "remove", "path": "/x"},
        {"op": "replace", "path": "/x", "value": 1},
        {"op": "add", "path": "/l/5", "value": 1},
        {"op": "test", "path": "/l/0", "value": 9},
        {"op": "test", "path": "/l/-", "value": 9},
        {"op": "test", "path": "/l/1", "value": None},
        {"op": "test", "path": "/l", "value": None},
        {"op": "test", "path": "/l"},
        {"op": "test", "path": "/x", "value": {}},
        {"op": "test", "path": "/x/y", "value": None},
        {"op": "test", "path": "", "value": None},
        {"op": "remove", "path": "/l/-2"},
        {"op": "what", "path": "/l"},
        {"op": "add", "path": "no-slash", "value": 1},
    ],
)
def test_a_json_patch_that_does_not_fit_changes_nothing(operation: Json) -> None:
    """Neither the document nor what came before in the patch."""
    document: Json = {"l": [1]}

    with pytest.raises(ApiError) as caught:
        json_patch(document, [{"op": "add", "path": "/a", "value": 1}, operation])

    assert (caught.value.code, document) == (422, {"l": [1]})


@pytest.mark.parametrize(
    ("target", "patch", "after"),
    [
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_a_merge_patch_does_what_the_rfc_says(target: Any, patch: Any, after: Any) -> None:
    """The RFC's own table."""
    assert merge_patch(target, patch) == after


@pytest.mark.parametrize(
    ("target", "patch", "after"),
    [
        pytest.param(
            {"env": [{"name": "A", "value": "1"}]},
            {"env": [{"name": "B", "value": "2"}]},
            {"env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]},
            id="added",
        ),
        pytest.param(
            {"conditions": [{"type": "A", "status": "True", "x": 1}]},
            {"conditions": [{"type": "A", "status": "False"}]},
            {"conditions": [{"type": "A", "status": "False", "x": 1}]},
            id="merged",
        ),
        pytest.param(
            {"schedulingGates": [{"name": "a"}, {"name": "b"}]},
            {"schedulingGates": [{"name": "a", "$patch": "delete"}]},
            {"schedulingGates": [{"name": "b"}]},
            id="deleted",
        ),
        pytest.param(
            {"tolerations": [{"key": "a"}]},
            {"tolerations": [{"key": "b"}]},
            {"tolerations": [{"key": "b"}]},
            id="whole",
        ),
        pytest.param({"finalizers": ["a"]}, {"finalizers": ["b"]}, {"finalizers": ["a", "b"]}, id="set"),
        pytest.param(
            {"finalizers": ["a", "b"]},
            {"$deleteFromPrimitiveList/finalizers": ["a"]},
            {"finalizers": ["b"]},
            id="unset",
        ),
        pytest.param({"a": {"b": 1}}, {"a": {"$patch": "replace", "c": 2}}, {"a": {"c": 2}}, id="replaced"),
    ],
)
def test_a_strategic_merge_knows_the_keys_of_lists(target: Json, patch: Json, after: Json) -> None:
    """And replaces the lists that have none."""
    assert strategic_merge(target, patch) == after


def test_what_is_no_longer_applied_goes_and_the_rest_stays() -> None:
    """An applier owns its fields, and only those."""
    owners: Owners = {}
    live: Json = {"metadata": {}, "status": {"foreign": 1}}
    live, owners = apply(live, {"status": {"a": 1, "b": 2}}, owners, manager="m", force=False)

    live, owners = apply(live, {"status": {"a": 1}}, owners, manager="m", force=False)

    assert live["status"] == {"foreign": 1, "a": 1}


def test_elements_of_keyed_lists_are_owned_one_by_one() -> None:
    """Another's condition is never in the way."""
    live: Json = {"metadata": {}, "conditions": [{"type": "A", "status": "True"}]}
    live, owners = apply(live, {"conditions": [{"type": "B", "status": "True"}]}, {}, manager="m", force=False)
    both = [each["type"] for each in live["conditions"]]

    live, _ = apply(live, {"conditions": []}, owners, manager="m", force=False)

    assert both == ["A", "B"]
    assert live["conditions"] == [{"type": "A", "status": "True"}]


def test_two_appliers_of_one_field_are_a_conflict_until_one_insists() -> None:
    """With force the field changes hands."""
    live, owners = apply({"metadata": {}}, {"status": {"a": 1}}, {}, manager="one", force=False)

    with pytest.raises(ApiError) as caught:
        apply(live, {"status": {"a": 2}}, owners, manager="two", force=False)
    live, owners = apply(live, {"status": {"a": 2}}, owners, manager="two", force=True)

    assert (caught.value.code, live["status"]) == (409, {"a": 2})
    assert owners["one"] == frozenset()
