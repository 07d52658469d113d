"""The machine's pip settings, for use in image builds: one pip.conf and the local paths it names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from configparser import RawConfigParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# Package sources and network settings. Others (such as a target directory) only concern the machine.
_LENT = ("index-url", "extra-index-url", "find-links", "no-index", "cert", "client-cert", "trusted-host", "proxy")
_SYSTEM_CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"


def files(environ: Mapping[str, str], home: Path) -> list[Path]:
    """The files pip reads, lowest precedence first."""
    user = Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
    found = [
        Path("/etc/xdg/pip/pip.conf"),
        Path("/etc/pip.conf"),
        home / ".pip" / "pip.conf",
        user / "pip" / "pip.conf",
    ]
    return found + [Path(named) for named in [environ.get("PIP_CONFIG_FILE")] if named]


def settings(contents: Iterable[str], environ: Mapping[str, str]) -> dict[str, str]:
    """The settings of all files and of the environment, which takes precedence."""
    found = {"cert": _SYSTEM_CERTIFICATES}
    for content in contents:
        parser = RawConfigParser()
        parser.read_string(content)
        for section in ("global", "install"):
            if parser.has_section(section):
                found |= dict(parser.items(section))
    for name in _LENT:
        found[name] = environ.get(f"PIP_{name.upper().replace('-', '_')}") or found.get(name, "")
    return {name: " ".join(found[name].split()) for name in _LENT if found[name]}


def pip_conf(lent: Mapping[str, str]) -> str:
    return "".join(["[global]\n", *(f"{name} = {value}\n" for name, value in lent.items())])


def local_paths(lent: Mapping[str, str]) -> list[Path]:
    """The files and directories in the settings; for an index its parent, since it links to files beside it."""
    found = set()
    for name, value in lent.items():
        for word in value.split():
            path = Path(unquote(urlsplit(word).path)) if word.startswith("file://") else Path(word)
            if not path.is_absolute():
                continue
            is_index = name.endswith("index-url") and path.parent != Path("/")
            found.add(path.parent if is_index else path)
    return sorted(found)
