"""Invalid input is refused with a sentence, at once, and disturbs nothing else."""

import subprocess

import pytest

MISTAKES = {
    "zero-gpus": ("sluice.dev/gpus", "0"),
    "too-many-gpus": ("sluice.dev/gpus", "9"),
    "zero-percent": ("sluice.dev/sm-percentage", "0"),
    "too-many-percent": ("sluice.dev/sm-percentage", "101"),
    "no-number": ("sluice.dev/sm-count", "many"),
    "no-such-profile": ("sluice.dev/profile", "9x.900gb"),
    "bad-grammar": ("sluice.dev/profile", "three slices"),
    "misspelt": ("sluice.dev/profil", "1g.5gb"),
    "no-such-container": ("trainer.sluice.dev/profile", "1g.5gb"),
}


async def test_every_mistake_in_a_manifest_is_refused_in_words_and_disturbs_no_other_pod(up):
    """`sluice pods --json` names field and value; a correct pod beside them is served."""
    await up.started()
    for name, (key, value) in MISTAKES.items():
        up.put(name, annotations={key: value})
    up.write("not-yaml.yaml", "metadata: [unclosed\n")
    up.write("not-a-pod.yaml", "apiVersion: v1\nkind: pod\nmetadata: {name: s}\n")
    up.add("by-profile")
    expected = {*MISTAKES, "not-yaml.yaml", "not-a-pod.yaml"}
    async with up.watching() as watching:
        await watching.bound("by-profile")
        await watching.until(
            lambda pods, gpus: sum(pod.state == "refused" for pod in pods.values()) == len(expected),
            "every mistake to be refused",
        )
    pods = up.json("pods")["pods"]
    refused = [pod for pod in pods if pod["state"] == "refused"]
    told = {name for name in expected for pod in refused if name == pod["name"] or name in pod["origin"]}
    assert told == expected
    for pod in refused:
        assert pod["refusal"]["reason"]
        assert pod["message"].startswith("refused: ")
    for name, (key, value) in MISTAKES.items():
        (pod,) = [pod for pod in refused if pod["name"] == name]
        where = pod["refusal"]["field"] + pod["refusal"]["value"]
        assert key.rpartition("/")[2] in where or value in where
    assert [pod["name"] for pod in pods if pod["state"] == "bound"] == ["by-profile"]


async def test_a_mended_manifest_is_served(up):
    """The same file, corrected."""
    await up.started()
    async with up.watching() as watching:
        up.put("train", profile="three")
        await watching.stands("train", "refused")
        up.put("train", profile="3g.20gb")
        await watching.bound("train")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[node]]\nname = 'a'\ngpus = [{model = 'H900', count = 1}]\n", "H900"),
        ("[[node]]\nname = 'a'\nmemry_mib = 1\n", "memry_mib"),
        ("this is no TOML", "fleet.toml"),
    ],
    ids=["unknown model", "unknown key", "no TOML"],
)
def test_a_wrong_fleet_file_is_one_clear_sentence_and_starts_nothing(up, tmp_path, text, words):
    """No traceback, no half-started system."""
    fleet = tmp_path / "fleet.toml"
    fleet.write_text(text, encoding="utf-8")
    assert_refused(up.sluice("up", "--fleet", str(fleet), "--pods", str(up.pods_dir)), words)
    assert not list(up.temporary.iterdir())


def test_a_missing_folder_or_fleet_is_named(up, tmp_path):
    """The two paths that are mistyped most."""
    missing = str(tmp_path / "nowhere")
    assert_refused(up.sluice("up", "--fleet", missing, "--pods", str(up.pods_dir)), missing)
    assert_refused(up.sluice("up", "--fleet", str(up.fleet), "--pods", missing), missing)


def test_a_server_that_does_not_answer_is_said_within_seconds(up):
    """Not a traceback, and not forever."""
    for command in ("gpus", "events"):
        said = up.sluice(command, "--server", "nats://127.0.0.1:9", timeout_s=30)
        assert_refused(said, "no NATS server answers at nats://127.0.0.1:9")


def test_wrong_usage_is_exit_2(up):
    """A script can tell a mistake of its own from a failure."""
    for arguments in (
        ("up",),
        ("gpsu",),
        ("pods", "--yaml"),
        ("up", "--fleet", "f", "--pods", "p", "--processes", "0"),
        ("up", "--pods", "p"),
    ):
        result = up.sluice(*arguments)
        assert result.returncode == 2, (arguments, result.stderr)
        assert "Traceback" not in result.stderr


def assert_refused(result: subprocess.CompletedProcess[str], words: str) -> None:
    """Exit 1 and one sentence."""
    assert result.returncode == 1, result.stderr
    assert words in result.stderr
    assert "Traceback" not in result.stderr
