"""A container image that contains only busybox."""

import hashlib
import io
import json
import tarfile
from pathlib import Path

TOOLS = ("httpd", "ip", "ping", "sh", "sleep", "wget")


def write(path: Path, name: str, busybox: Path) -> None:
    """Write the image as `docker save` does. Its file /index.html contains "hello"."""
    layer = _layer(busybox.read_bytes())
    config = json.dumps(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Entrypoint": ["/bin/sleep", "2147483647"], "Env": ["PATH=/bin"]},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
        }
    ).encode()
    file = f"{hashlib.sha256(config).hexdigest()}.json"
    manifest = json.dumps([{"Config": file, "RepoTags": [name], "Layers": ["layer.tar"]}]).encode()
    with tarfile.open(path, "w") as archive:
        for member, data in ((file, config), ("layer.tar", layer), ("manifest.json", manifest)):
            _add(archive, member, data)


def unpack(folder: Path, busybox: Path) -> None:
    """Write the file system of the image into a directory."""
    folder.mkdir()
    with tarfile.open(fileobj=io.BytesIO(_layer(busybox.read_bytes()))) as archive:
        archive.extractall(folder, filter="fully_trusted")


def _layer(busybox: bytes) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for folder in ("bin", "dev", "etc", "proc", "sys", "tmp"):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(entry)
        _add(archive, "bin/busybox", busybox)
        _add(archive, "index.html", b"hello\n")
        for tool in TOOLS:
            entry = tarfile.TarInfo(f"bin/{tool}")
            entry.type, entry.linkname = tarfile.SYMTYPE, "busybox"
            archive.addfile(entry)
    return buffer.getvalue()


def _add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(data), 0o755
    archive.addfile(entry, io.BytesIO(data))
