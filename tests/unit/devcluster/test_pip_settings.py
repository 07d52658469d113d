"""Which of the machine's pip settings an image build uses."""

from __future__ import annotations

from pathlib import Path

from dev.cluster.pip_settings import files, local_paths, pip_conf, settings

MACHINE = "[global]\ncert = /etc/company.crt\nfind-links = /opt/wheels\n    /opt/more wheels.example/links\n"
USER = "[global]\ntarget = /somewhere\n[install]\nextra-index-url = file:///opt/py%20pi/simple https://pypi.example/simple\n"


def test_the_strongest_setting_wins_and_only_those_about_indexes_are_lent() -> None:
    environ = {"PIP_CERT": "/own.crt", "CERT": "/not/pip", "PIP_USER": "1", "PIP_NO_INDEX": ""}
    assert settings([MACHINE, USER], environ) == {
        "extra-index-url": "file:///opt/py%20pi/simple https://pypi.example/simple",
        "find-links": "/opt/wheels /opt/more wheels.example/links",
        "cert": "/own.crt",
    }


def test_without_any_setting_the_systems_certificates_are_lent() -> None:
    assert settings([], {}) == {"cert": "/etc/ssl/certs/ca-certificates.crt"}


def test_later_files_are_stronger() -> None:
    named = files({"PIP_CONFIG_FILE": "/x/pip.conf"}, Path("/home/a"))
    assert [str(path) for path in named[1:]] == [
        "/etc/pip.conf",
        "/home/a/.pip/pip.conf",
        "/home/a/.config/pip/pip.conf",
        "/x/pip.conf",
    ]
    assert settings(["[global]\ncert = /a", "[global]\ncert = /b"], {})["cert"] == "/b"


def test_local_paths_are_found_and_an_index_brings_the_files_beside_it() -> None:
    lent = settings([MACHINE, USER], {})
    assert [str(path) for path in local_paths(lent)] == ["/etc/company.crt", "/opt/more", "/opt/py pi", "/opt/wheels"]
    assert local_paths({"index-url": "file:///simple"}) == [Path("/simple")]


def test_pip_reads_the_written_settings() -> None:
    lent = settings([MACHINE, USER], {})
    assert settings([pip_conf(lent)], {}) == lent
