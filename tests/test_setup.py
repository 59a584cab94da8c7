"""`make setup` on a machine without Java, where it may not install one: Debian's package is unpacked."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CONFIGURED = "/etc/java-17-nowhere/security/java.security"
JAVA = """
echo 'openjdk version "17.0.9" 2023-10-17' >&2
test "$*" = -version || cat "$(dirname "$0")/../conf/security/java.security" > /dev/null
"""


def program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """What is in the package: its configuration lies in /etc, and links lead there."""
    folder = tmp_path / "package"
    home = folder / "usr/lib/jvm/java-17-openjdk-any"
    program(home / "bin/java", JAVA)
    security = home / "conf/security"
    security.mkdir(parents=True)
    (security / "java.security").symlink_to(CONFIGURED)
    (security / "cacerts").symlink_to("/etc/ssl/of-another-package")
    (home / "lib").symlink_to("bin")
    configured = folder / CONFIGURED.lstrip("/")
    configured.parent.mkdir(parents=True)
    configured.write_text("securerandom.source=file:/dev/random\n")
    return folder


def set_up(folder: Path, code: int = 0, *, apt: bool = True) -> str:
    """`find_java` of an ordinary user whose machine has one Java, which does not work; what it says."""
    path = folder / "path"
    for name in (
        "bash",
        "sed",
        "head",
        "cat",
        "dirname",
        "mktemp",
        "rm",
        "cp",
        "find",
        "readlink",
        "mv",
        "touch",
        "ls",
    ):
        path.mkdir(exist_ok=True)
        (path / name).unlink(missing_ok=True)
        (path / name).symlink_to(str(shutil.which(name)))
    program(path / "id", "echo 1000")
    program(path / "java", "echo 'openjdk version \"21.0.1\"' >&2; test $# = 1")
    if apt:
        program(path / "apt-get", "touch openjdk-17-jre-headless.deb")
    program(path / "dpkg", f'cp -r {folder}/package/. "$3"')
    done = subprocess.run(
        [
            "bash",
            "-euc",
            f"set -o pipefail; say() {{ echo $*; }}; source {ROOT}/tools/java.sh; find_java",
        ],
        cwd=folder,
        env={"PATH": str(path), "JAVA_HOME": str(folder / "gone")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (code, "")
    return done.stdout


def test_an_unpacked_java_has_its_configuration_with_it(tmp_path: Path, package: Path) -> None:
    stale = tmp_path / ".java"
    program(stale / "bin/java", "exit 1")  # of an attempt that went wrong
    assert set_up(tmp_path) == "unpacking Java 17 into .java\n"
    shutil.rmtree(package)
    home = tmp_path / ".java"
    subprocess.run([home / "bin/java", "Program"], check=True, stderr=subprocess.DEVNULL)
    assert not (home / "conf/security/java.security").is_symlink()
    assert (home / "conf/security/cacerts").is_symlink()
    assert os.readlink(home / "lib") == "bin"
    assert sorted(one.name for one in tmp_path.iterdir()) == [".java", "path"]
    assert set_up(tmp_path) == "", "it is found again"


def test_a_java_that_does_not_work_is_not_taken_for_one(tmp_path: Path, package: Path) -> None:
    shutil.rmtree(package / "etc")
    assert "none that works was found" in set_up(tmp_path, 1)


def test_without_any_java_setup_fails_and_says_what_to_do(tmp_path: Path) -> None:
    said = set_up(tmp_path, 1, apt=False)
    assert "unpacking" not in said
    for way in ("apt-get install", "dnf install", ".java", "JAVA_HOME"):
        assert way in said
    assert "find_java || exit 1" in (ROOT / "tools/setup.sh").read_text()


@pytest.mark.parametrize(("user", "code"), [(0, 0), (1000, 1)])
def test_root_gets_what_python_lacks_to_make_an_environment(
    tmp_path: Path, user: int, code: int
) -> None:
    """Others are told what to install."""
    path = tmp_path / "path"
    program(path / "id", f"echo {user}")
    program(path / "python3", f"test -e {tmp_path}/installed && mkdir -p $3/bin")
    program(path / "apt-get", f'test "$1" = update || touch {tmp_path}/installed')
    done = subprocess.run(
        [
            "bash",
            "-euc",
            f"say() {{ echo $*; }}; die() {{ say $*; exit 1; }}; source {ROOT}/tools/uv.sh; make_venv made",
        ],
        cwd=tmp_path,
        env={"PATH": f"{path}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, (tmp_path / "made").exists()) == (code, code == 0)
    assert "python3-venv" in done.stdout
