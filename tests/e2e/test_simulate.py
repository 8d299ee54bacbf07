"""`sluice simulate` as a person types it: files in, a file out, or one clear sentence."""

import io
import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
from factories.scheduling.workloads import arrive, as_text, depart, fleet_of
from judges.answers import over_commits, read_answers

from sluice.mig.catalog import catalog
from sluice_allocator.offline.__main__ import main

EXAMPLES = Path(__file__).parents[2] / "examples"
SLUICE = (sys.executable, "-m", "sluice_console", "simulate")
DIRECT = (sys.executable, "-m", "sluice_allocator.offline")


def simulated(*words):
    """What `sluice simulate` answers to these arguments."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            code = main(words)
        except SystemExit as ended:
            code = ended.code
    return subprocess.CompletedProcess(words, code, out.getvalue(), err.getvalue())


class Files:
    """A fleet, a workload and the place of the answers."""

    def __init__(self, folder):
        self.folder = folder
        self.fleet, self.workload, self.out = (folder / name for name in ("fleet.toml", "w.jsonl", "answers.jsonl"))

    def run(self, *options, program=None):
        """In this process, or by a command of its own."""
        files = ("--fleet", str(self.fleet), "--workload", str(self.workload), "--out", str(self.out))
        if program is None:
            return simulated(*files, *options)
        return subprocess.run((*program, *files, *options), capture_output=True, text=True, timeout=90, check=False)

    def answers(self, fleet, lines, *options):
        """The answers and the summary of a run that must succeed."""
        self.fleet.write_text(fleet, encoding="utf-8")
        self.workload.write_text(as_text(lines), encoding="utf-8")
        result = self.run(*options)
        assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
        return read_answers(self.out.read_text(encoding="utf-8"))


@pytest.fixture
def files(tmp_path):
    """Files in a folder that is gone afterwards."""
    return Files(tmp_path)


def devices(answer, *keys):
    return [tuple(device[key] for key in keys) for device in answer["devices"]]


def test_the_example_runs_as_it_is_documented(files):
    """One request waits, one is refused, all are withdrawn."""
    files.fleet, files.workload = EXAMPLES / "fleet.toml", EXAMPLES / "workload.jsonl"
    assert files.run().returncode == 0
    answers, summary = read_answers(files.out.read_text(encoding="utf-8"))
    assert (summary["arrivals"], summary["bound"], summary["pending"], summary["refused"]) == (6, 5, 1, 1)
    assert (summary["released"], summary["running"], summary["waiting"]) == (5, 0, 0)
    assert over_commits(answers, gpu_memory_mib=40960) == []


def test_equal_files_give_equal_bytes_through_either_command(files):
    """`sluice simulate` is `python -m sluice_allocator.offline`, in every process alike."""
    lines = [arrive(at // 3, f"p{at}", profile=("1g.5gb", "3g.20gb")[at % 2]) for at in range(40)]
    lines += [depart(20, f"p{at}") for at in range(0, 40, 3)]
    for options in ((), ("--seed", "7", "--policy", "node=spread,gpu=binpack")):
        files.answers(fleet_of(nodes=2, gpus=2), lines, *options)
        first = files.out.read_bytes()
        for program in (DIRECT, SLUICE) if options else ():
            assert files.run(*options, program=program).returncode == 0
            assert files.out.read_bytes() == first


@pytest.mark.parametrize(
    ("fleet", "workload", "options", "words"),
    [
        (fleet_of(), '{"at": 1, "arive": {}}\n', (), "w.jsonl:1: arive = {}: unknown key"),
        (fleet_of(), "{}\n", (), "w.jsonl:1: at = (not given): must be a time"),
        (fleet_of(), '{"at": 5, "depart": "a"}\n{"at": 4, "depart": "b"}', (), "w.jsonl:2: at = 4: time goes back"),
        (fleet_of(), "\n" * 9, ("--policy", "bestfit"), "--policy bestfit: there is no policy 'bestfit'"),
        (fleet_of(), "\n" * 9, ("--seed", "-1"), "not a whole number"),
        (fleet_of(), None, (), "w.jsonl cannot be read"),
        ("[[node]]\n", "\n", (), "fleet.toml: node[1].name = (not given): must be a text"),
        (None, "\n", (), "fleet.toml cannot be read"),
    ],
)
def test_wrong_input_is_exit_2_one_sentence_and_no_answers(files, fleet, workload, options, words):
    """A script can tell a mistake of its own, and never reads half an answer."""
    given = {path: text for path, text in ((files.fleet, fleet), (files.workload, workload)) if text is not None}
    for path, text in given.items():
        path.write_text(text, encoding="utf-8")
    result = files.run(*options)
    assert result.returncode == 2, result.stderr
    assert words in result.stderr
    assert "Traceback" not in result.stderr
    assert set(files.folder.iterdir()) == set(given)


def test_a_mistake_late_in_a_workload_leaves_the_old_answers_alone(files):
    """The file changes whole or not at all."""
    files.answers(fleet_of(), [arrive(0, "a", profile="1g.5gb")])
    before = files.out.read_bytes()
    files.workload.write_text(as_text([arrive(0, "a", profile="1g.5gb")] * 2), encoding="utf-8")
    result = files.run()
    assert result.returncode == 2
    assert 'w.jsonl:2: arrive.id = "a": is in use' in result.stderr
    assert files.out.read_bytes() == before
    assert len(list(files.folder.iterdir())) == 3


@pytest.mark.parametrize("out", ["nowhere/answers.jsonl", ".", "pipe", "w.jsonl"])
def test_answers_never_take_the_place_of_anything_else(files, out):
    """A missing folder, a folder, a device or the input itself is named before any work, and stays as it is."""
    files.fleet.write_text(fleet_of(), encoding="utf-8")
    files.workload.write_text("\n", encoding="utf-8")
    os.mkfifo(files.folder / "pipe")
    files.out = files.folder / out
    result = files.run(program=DIRECT)
    assert result.returncode == 2
    assert f"--out {files.out}: " in result.stderr
    assert sorted(path.name for path in files.folder.iterdir()) == ["fleet.toml", "pipe", "w.jsonl"]
    assert files.workload.read_text(encoding="utf-8") == "\n"


@pytest.mark.parametrize("arguments", [(), ("--fleet", "f"), ("--fleet", "f", "--workload", "w")])
def test_usage_is_said_in_words(arguments):
    """What is missing is named."""
    result = simulated(*arguments)
    assert result.returncode == 2
    assert "--workload" in result.stderr
    assert "Traceback" not in result.stderr


SPELLED_OUT = """[[node]]
name = "new"
[[node.gpus]]
model = "NVIDIA X100"
memory_mib = 98304
multiprocessors = 132
profiles = [
  { name = "1g.13gb", memory_mib = 11264, multiprocessors = 16, starts = [0, 1, 2, 3, 4, 5, 6], size = 1 },
  { name = "7g.97gb", memory_mib = 95232, multiprocessors = 132, starts = [0], size = 8 },
]
"""


def test_every_model_is_rehearsed_by_the_name_that_a_pod_gives_it(files):
    """A fleet of B200 could not be simulated at all, or its pods would not find their GPU by its name."""
    models = [model for model in catalog() if model.key != "gb200-189gb"]  # its boards have the name of the others
    kinds = ", ".join(f'{{ model = "{model.key}" }}' for model in models)
    lines = [arrive(0, model.key, gpu_model=(model.short_names or (model.key,))[-1], gpus="1") for model in models]
    answers, _ = files.answers(f'[[node]]\nname = "n"\ngpus = [{kinds}]\n', lines, "--no-queue")
    given = {answer["id"]: devices(answer, "gpu", "profile") for answer in answers}
    assert given == {
        model.key: [(f"GPU-n-{number}", model.largest.name if model.profiles else None)]
        for number, model in enumerate(models)
    }


def test_a_model_of_the_fleet_files_own_is_rehearsed(files):
    """An operator with a GPU that this release does not know could not plan for it."""
    lines = [arrive(0, f"p{number}", profile="1g.13gb", gpu_model="x100") for number in range(8)]
    answers, _ = files.answers(SPELLED_OUT, lines, "--no-queue")
    assert [answer["answer"] for answer in answers] == ["bound"] * 7 + ["refused"]


def test_a_name_that_is_half_a_model_is_answered_with_both(files):
    """`a100` is ambiguous: the error names the two models, and how to spell out one."""
    files.fleet.write_text('[[node]]\nname = "n"\ngpus = [{model = "a100"}]\n', encoding="utf-8")
    files.workload.write_text("", encoding="utf-8")
    result = files.run()
    assert result.returncode == 2
    assert 'gpus[1].model = "a100": no known GPU model; did you mean a100-40gb or a100-80gb?' in result.stderr


def test_profiles_with_attributes_are_had_by_either_spelling(files):
    """A pod that requests all media engines by NVIDIA's resource would be refused forever."""
    asked = {"1g.24gb.me.all": "1g.24gb+me.all", "2g.48gb.gfx": "2g.48gb+gfx", "1g.24gb-me": "1g.24gb-me"}
    lines = [arrive(0, name, {f"nvidia.com/mig-{name}": 1}) for name in asked]
    lines += [arrive(1, f"{name} by annotation", profile=name) for name in asked.values()]
    answers, _ = files.answers(fleet_of(gpus=6, model="NVIDIA RTX PRO 6000 Blackwell Server Edition"), lines)
    assert [devices(answer, "profile") for answer in answers] == [[(name,)] for name in asked.values()] * 2
