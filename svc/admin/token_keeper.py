"""Keep token and kubeconfig of a node valid: renew the token in time, and when something shows that it must be renewed.

| what | found by |
|---|---|
| a quarter of the validity has passed | the clock |
| the API server signs with another key | a token of the pod that names another key than the installed one |
| the API server refuses the installed token | a request with the installed kubeconfig once a minute, answered by status 401 |
| another program changed or removed a file | file versions, once a second |
| the certificate of the API server's authority changed | the same |
"""

import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from svc.admin.account_access import Access
from svc.admin.account_token import SHORTEST_SECONDS, Token, decode, is_of_plugin, obtain, read_installed, seconds_until_renewal
from svc.admin.repeated_task import RepeatedTask, Report, boot_time
from svc.atomic_file import File, write
from svc.datastore.open import open_client
from svc.model.errors import Code, PeerError, SvcError

if TYPE_CHECKING:
    from svc.datastore.orch.client import Client  # its packages come with an extra

TRIAL_SECONDS = 60.0  # between two requests that show whether the API server accepts the installed token
_TRIED_PATH: Final = "/version"  # needs no right: only a token that is not valid is refused
_UNAUTHORIZED: Final = 401
_ACCOUNT_FILES: Final = ("token", "ca.crt", "namespace")

_Version = tuple[int, int, int, int, int] | None


class TokenKeeper:
    """Keeps the two files of an access valid, by calls of `look`. Not thread-safe."""

    def __init__(
        self,
        access: Access,
        report: Report,
        *,
        source: Callable[[Access], Token] = obtain,
        clock: Callable[[], float] = boot_time,
    ) -> None:
        self._access = access
        self._report = report
        self._source = source
        self._clock = clock
        self._held: Token | None = None  # None until the first look
        self._mounted = Token("")  # of the pod, when the held token was obtained
        self._is_refused = False
        self._renewal = self._obtained = clock()
        self._trial = clock()
        self._client: Client | None = None
        self._seen = self._versions()
        self._task = RepeatedTask(self._keep, report, failed="not renewed", recovered="the token is renewed again", clock=clock)

    def look(self) -> None:
        """Look at all files, and at the clock. Write what has to be written."""
        versions = self._versions()
        if versions != self._seen:
            self._seen = versions
            self._task.hasten(self._clock())
        if self._clock() >= self._trial:
            self._trial = self._clock() + TRIAL_SECONDS * random.uniform(0.75, 1)  # noqa: S311 no secret
            self._try()
        self._task.run()

    def close(self) -> None:
        """Close the connection to the API server."""
        if self._client is not None:
            self._client.close()

    def _keep(self) -> float:
        """Write what nodes need. Return the seconds until the token has to be renewed."""
        mounted, present = decode(self._access.own_token()), read_installed(self._access)
        if self._held is None:
            self._adopt(mounted, present)
        is_new = self._held is None or self._is_outdated(self._held, mounted)
        if self._held is None or is_new:
            self._held = self._obtained_from(mounted)
        elif self._is_better(present):
            self._adopt(mounted, present)
        files = self._access.files(self._held.text)
        # A user asks for another token, or a program has damaged this one. A removal before this line was not seen above.
        if not is_new and read_installed(self._access).text != self._held.text:
            self._renewal = min(self._renewal, max(self._clock(), self._obtained + SHORTEST_SECONDS))
        for file in files:
            self._write(file)
        return self._renewal - self._clock()

    def _write(self, file: File) -> None:
        try:
            if write(file):
                self._report(f"{file.path} renewed", False)
        except OSError as error:  # its text names another draft each time
            details = f"have {self._access.conf_dir} writable"
            raise PeerError(
                f"{file.path} cannot be written: {error.strerror}", details=details, code=Code.IO_FAILURE
            ) from error

    def _is_outdated(self, held: Token, mounted: Token) -> bool:
        if self._is_refused or self._clock() >= self._renewal:
            return True
        is_own = not is_of_plugin(held, self._access)
        return mounted.text != self._mounted.text and (is_own or mounted.issuer != held.issuer)

    def _is_better(self, present: Token) -> bool:
        """Return whether the installed token is a later one of the same account: another installer has renewed it."""
        held = self._held
        is_same = held is not None and is_of_plugin(held, self._access) and is_of_plugin(present, self._access)
        return is_same and held is not None and present.expires > held.expires

    def _adopt(self, mounted: Token, present: Token) -> None:
        """Keep an installed token of the plugin's account, which counts from its issue."""
        if is_of_plugin(present, self._access):
            self._held, self._mounted = present, mounted
            age = time.time() - present.issued
            self._renewal = self._clock() + seconds_until_renewal(present.validity, age)

    def _obtained_from(self, mounted: Token) -> Token:
        token = self._source(self._access)
        self._mounted, self._is_refused = mounted, False
        self._obtained = self._clock()
        self._renewal = self._obtained + seconds_until_renewal(token.validity)
        return token

    def _try(self) -> None:
        """Use the installed token. If the API server refuses it, have it renewed. Other failures say nothing about it."""
        try:
            if self._held is None or not is_of_plugin(self._held, self._access):
                return
            if self._client is None:
                self._client = open_client({"kubeconfig": str(self._access.kubeconfig)})
            self._client.get(_TRIED_PATH)
        except SvcError as error:
            if getattr(error, "status", 0) == _UNAUTHORIZED:
                self._is_refused = True
                self._task.hasten(max(self._clock(), self._obtained + SHORTEST_SECONDS))

    def _versions(self) -> tuple[_Version, ...]:
        files = [self._access.account / name for name in _ACCOUNT_FILES]
        return tuple(map(_version, (*files, self._access.token_file, self._access.kubeconfig)))


def _version(path: Path) -> _Version:
    """Return a value that changes with content and mode of a file; None if it cannot be found."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_mode
