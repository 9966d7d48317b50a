"""Tokens and folders of service accounts, as kubelet makes them."""

import base64
import json
import os
from pathlib import Path
from typing import Any

from svc.admin.account_access import Access
from svc.names import DEFAULT, Names

Json = dict[str, Any]

NAMESPACE = "net"
PLUGIN = "system:serviceaccount:net:svc-cni-plugin"
NODE = "system:serviceaccount:net:svc-node"


def jwt(subject: str, issued: float, seconds: float, *, key: str = "k1", number: int = 0) -> str:
    """Return a token with these claims, and a signature that no server accepts."""
    claims = {"sub": subject, "iss": "https://tests", "iat": issued, "exp": issued + seconds, "jti": str(number)}
    return f"{part({'alg': 'none', 'kid': key})}.{part(claims)}.sig"


def part(document: Any) -> str:
    """Return a part of a token."""
    return base64.urlsafe_b64encode(json.dumps(document).encode()).decode().rstrip("=")


class MountedAccount:
    """The folder of an account in a pod: each change is one rename of the link `..data`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files: dict[str, str] = {}
        self._changes = 0
        folder.mkdir(exist_ok=True)

    def write(self, **files: str) -> None:
        """Replace files; an empty text removes one. `ca` stands for ca.crt."""
        self._files |= {name.replace("ca", "ca.crt") if name == "ca" else name: text for name, text in files.items()}
        self._files = {name: text for name, text in self._files.items() if text}
        self._changes += 1
        made = self.folder / f"..{self._changes}"
        made.mkdir()
        for name, text in self._files.items():
            (made / name).write_text(text)
        draft, data = self.folder / "..draft", self.folder / "..data"
        draft.symlink_to(made.name)
        os.rename(draft, data)
        for name in self._files:
            link = self.folder / name
            if not link.is_symlink():
                link.symlink_to(f"..data/{name}")


def access_of(account: Path, conf_dir: Path, port: int = 443, names: Names = DEFAULT) -> Access:
    """Return the access by an account to an API server of this machine."""
    variables = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(port)}
    return Access(account, variables, conf_dir, names)
