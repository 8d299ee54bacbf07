"""What the images are made from on this machine: its cache, its mirrors, its pip."""

from pathlib import Path

import pytest
from cluster import cache
from cluster.images import base, commands, engines, pip_settings
from cluster.images.errors import ImageError, NoEngineError

DEBIAN = 'PRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\nID=debian\nVERSION_ID="12"\nVERSION_CODENAME=bookworm\n'


def test_the_cache_is_where_a_person_wants_it(tmp_path):
    """Gigabytes on the wrong disk."""
    home = Path.home() / ".cache" / "sluice-cluster"
    assert cache.cache_folder({"SLUICE_CLUSTER_CACHE": "/a", "XDG_CACHE_HOME": "/b"}) == Path("/a")
    assert cache.cache_folder({"XDG_CACHE_HOME": "/b"}) == Path("/b/sluice-cluster")
    assert cache.cache_folder({"XDG_CACHE_HOME": "b"}) == home
    assert cache.cache_folder({}) == home
    with pytest.raises(cache.CacheError, match="SLUICE_CLUSTER_CACHE is 'a': give an absolute path"):
        cache.cache_folder({"SLUICE_CLUSTER_CACHE": "a"})


def test_two_builds_do_not_write_into_one_another(tmp_path):
    """The second waits, with a bound, and says for what."""
    with (
        cache.locked(tmp_path / "lock", wait_s=1),
        pytest.raises(cache.CacheError, match="another build"),
        cache.locked(tmp_path / "lock", wait_s=0),
    ):
        pass
    with cache.locked(tmp_path / "lock", wait_s=0):
        pass


def test_a_key_tells_parts_apart():
    """An old archive would be taken for new sources."""
    assert cache.digest_of(["ab", "c"]) != cache.digest_of(["a", "bc"])


def test_packages_come_from_the_machines_own_mirror():
    """A site's mirror is the only one that it reaches."""
    targets = (
        "http://mirror.test/security/\tbookworm-security\tmain\t$(SIGNED_BY)\n"
        "http://mirror.test/debian/\tbookworm-updates\tmain\t$(SIGNED_BY)\n"
        "https://mirror.test/debian/\tbookworm\tmain\t$(SIGNED_BY)\n"
    )
    assert base.source_of(targets, "bookworm") == base.Source("https://mirror.test/debian/", "bookworm")


def test_a_keyring_that_a_source_names_is_used(tmp_path):
    """A mirror that signs by itself would be refused."""
    keyring = tmp_path / "site.gpg"
    keyring.touch()
    targets = f"http://mirror.test/\tbookworm\tmain\t{keyring}\n"
    assert base.source_of(targets, "bookworm").keyring == str(keyring)


@pytest.mark.parametrize(
    ("targets", "problem"),
    [
        ("", "apt knows bookworm main in no source"),
        ("http://mirror.test/\ttrixie\tmain\t-\n", "apt knows bookworm main in no source"),
        ("mirror+file:/etc/list\tbookworm\tmain\t-\n", "apt knows bookworm main only by mirror[+]file: add a source"),
    ],
)
def test_a_machine_without_a_mirror_says_what_to_add(targets, problem):
    """No address is guessed."""
    with pytest.raises(ImageError, match=problem):
        base.source_of(targets, "bookworm")


def test_a_base_is_of_the_machines_own_release():
    """Debian 11 has a Python that is too old; another system has other packages."""
    assert base.suite_of(DEBIAN) == "bookworm"
    assert base.suite_of("ID=debian\nVERSION_CODENAME=forky\n") == "forky"
    for other in (DEBIAN.replace("12", "11"), DEBIAN.replace("=debian", "=other"), ""):
        with pytest.raises(ImageError, match="12 or newer"):
            base.suite_of(other)


def test_a_base_has_nothing_of_this_machine(tmp_path):
    """A mirror's password would be in each image."""
    for name in ("etc/apt/sources.list", "etc/hostname", "etc/resolv.conf", "dev/null", "usr/share/doc/a/b", "bin/sh"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("secret")
    base.strip(tmp_path)
    left = {str(path.relative_to(tmp_path)): path.read_text() for path in tmp_path.rglob("*") if path.is_file()}
    assert left == {"bin/sh": "secret", **dict.fromkeys(base.EMPTY, "")}


def test_pips_settings_of_this_machine_reach_the_builds(tmp_path):
    """Packages would be looked for where this machine reaches nothing."""
    certificate, wheels, empty = tmp_path / "ca", tmp_path / "wheels", tmp_path / "empty"
    certificate.write_text("certificate")
    wheels.mkdir()
    empty.mkdir()
    (wheels / "a.whl").touch()
    listing = (
        f":env:.cert='{certificate}'\n:env:.default-timeout='180'\n:env:.no-color='1'\n"
        f"global.cert='/elsewhere'\nglobal.index-url='https://u:p@mirror.test/simple'\n"
        f"install.find-links='\\n{wheels}\\n{empty}\\nhttps://wheels.test'\n"
    )
    settings = pip_settings.settings_of(listing)
    (tmp_path / "work").mkdir()
    mounts = dict(pip_settings.mounted(settings, tmp_path / "work"))
    text = (tmp_path / "work" / "pip.conf").read_text().splitlines()
    assert sorted(text) == sorted([
        "[global]", "cert = /etc/pip.crt", "timeout = 180", "index-url = https://u:p@mirror.test/simple",
        "find-links = https://wheels.test /mnt",
    ])  # fmt: skip
    assert mounts == {
        str(tmp_path / "work" / "pip.conf"): "/etc/pip.conf",
        str(tmp_path / "work" / "pip.crt"): "/etc/pip.crt",
        str(wheels): "/mnt",
    }
    assert (tmp_path / "work" / "pip.conf").stat().st_mode & 0o077 == 0


def test_an_engine_that_is_not_there_is_named():
    """With what can be asked for."""
    with pytest.raises(ImageError, match=r"engine 'dokcer' is not known \(auto, buildah, docker\)"):
        engines.engine_of("dokcer")


def test_a_machine_without_an_engine_can_still_run_the_other_suites(tmp_path, monkeypatch):
    """They skip what needs images by this error, and a build that failed on a machine with an engine is no skip."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        NoEngineError, match=r"engine buildah cannot be used: .*; engine docker cannot be used: there is no"
    ):
        engines.engine_of("auto")


def test_a_program_has_a_bound_and_its_password_is_not_shown():
    """A build that hangs would hang for good, and a log would hold a mirror's password."""
    with pytest.raises(ImageError, match="took longer than 0 s"):
        commands.run(["sleep", "60"], limit_s=0.1)
    with pytest.raises(ImageError) as caught:
        commands.run(["sh", "-c", "echo http://u:secret@mirror.test/; exit 3"], limit_s=10)
    assert "ended with 3" in str(caught.value)
    assert "secret" not in str(caught.value)
    assert commands.run(["cat"], limit_s=10, stdin=b"in") == "in"
    with pytest.raises(ImageError, match="there is no program gone-program"):
        commands.run(["gone-program"], limit_s=10)
