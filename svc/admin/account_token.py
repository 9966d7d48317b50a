"""Tokens of the plugin's account, which the API server issues to the pod that installs (TokenRequest).

Such a token stays valid when the pod ends, unlike that of the pod itself. An API server that issues no tokens, and a folder
that was made by hand, leave only the account's own token.
"""

import base64
import json
import math
import random
import time
from collections.abc import Callable
from contextlib import closing
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from svc.admin.account_access import Access
from svc.datastore.api import StoreError
from svc.datastore.open import open_client
from svc.deploy import rbac
from svc.values import dataclass

if TYPE_CHECKING:
    from svc.datastore.orch.client import Client  # its packages come with an extra

Json = dict[str, Any]

ASKED_SECONDS: Final = 86_400  # of validity; a server grants less or more
RENEWAL_PART = 0.25  # of the validity: after it, the token is renewed
SHORTEST_SECONDS = 5.0  # between renewals
JITTER: Final = 0.25  # maximum fraction by which the time until a renewal is shortened, so that nodes spread their requests
_WORTH_KEEPING_SECONDS: Final = 600.0
_RESOURCE: Final = "serviceaccounts/token"


@dataclass(frozen=True, slots=True)
class Token:
    """A token and what it says of itself. Times are Unix times of the API server.

    `issuer` names the issuer and its key. Other tokens than JSON Web Tokens say nothing, and their end is unknown.
    """

    text: str
    subject: str = ""
    issuer: str = ""
    issued: float = 0.0
    expires: float = math.inf

    @property
    def validity(self) -> float:
        """The seconds for which it was granted."""
        return self.expires - self.issued


def decode(text: str) -> Token:
    """Return a token with what it says of itself. Its signature is the server's concern."""
    try:
        head, body, _ = text.strip().split(".")
        header, claims = _json(head), _json(body)
        issued, expires = _number(claims, "iat", 0.0), _number(claims, "exp", math.inf)
        issuer = f"{claims.get('iss', '')} {header.get('kid', '')}"
        return Token(text, str(claims.get("sub", "")), issuer, issued, expires)
    except (ValueError, AttributeError, OverflowError, RecursionError):  # malformed: parts, base64, JSON, or no object
        return Token(text)


def is_of_plugin(token: Token, access: Access) -> bool:
    """Return whether a token says that it is one of the plugin's account."""
    return bool(access.namespace) and token.subject == _subject(access)


def seconds_until_renewal(validity: float, age: float = 0.0, jitter: Callable[[], float] = random.random) -> float:
    """Return when a token of this age is renewed, at the latest after a quarter of its validity. `jitter` is from 0 to 1."""
    return max(SHORTEST_SECONDS, validity * RENEWAL_PART * (1 - JITTER * jitter()) - max(0.0, age))


def obtain(access: Access) -> Token:
    """Return a new token of the plugin's account, else the account's own. Raise SvcError if none can be had."""
    own = decode(access.own_token())
    namespace = access.namespace
    if not namespace:
        return own
    account = rbac.plugin_account(access.names)
    role = rbac.installer_name(access.names)
    remedy = f"grant it: `svcctl manifests` prints the Role {role}, with create of {_RESOURCE} for {account!r}"
    with closing(open_client(access.settings(), right_remedy=remedy)) as client:
        return _requested(client, namespace, account) or own


def obtain_or_keep(access: Access, warn: Callable[[str], None]) -> Token:
    """Return what `obtain` returns. While the API server is away, return the installed token, if it is valid for long."""
    try:
        return obtain(access)
    except StoreError as error:
        kept = read_installed(access)
        if not _is_away(error) or not is_of_plugin(kept, access) or kept.expires < time.time() + _WORTH_KEEPING_SECONDS:
            raise
        warn(f"warning: the token that is there is kept, because no other can be had now: {error}")
        return kept


def read_installed(access: Access) -> Token:
    """Return the installed token; an empty one without a file that can be read."""
    try:
        return decode(access.token_file.read_text())
    except (OSError, UnicodeDecodeError):
        return Token("")


def _requested(client: "Client", namespace: str, account: str) -> Token | None:
    """Return a new token; None if the server issues none. Raise StoreError."""
    from svc.datastore.orch.client import ApiError, segment

    path = f"/api/v1/namespaces/{segment(namespace)}/serviceaccounts/{segment(account)}/token"
    spec = {"audiences": [], "expirationSeconds": ASKED_SECONDS}
    try:
        answer = client.create(path, {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec})
    except ApiError as error:
        if error.status != 404:
            raise
        if not _is_served(client):
            return None
        raise StoreError(
            f"{error.msg}: the account does not exist",
            details=f"make it: `svcctl manifests` prints the ServiceAccount {account} of namespace {namespace}",
        ) from None
    return _issued(answer, path)


def _issued(answer: Json, path: str) -> Token:
    """Return the token of an answer. Its own times count more than those beside it. Raise StoreError for an empty one."""
    status = answer.get("status") or {}
    token = decode(str(status.get("token") or ""))
    if not token.text.strip():
        raise StoreError(f"POST {path}: the answer has no token", details="see the API server's log")
    if token.subject:
        return token
    try:
        expires = datetime.fromisoformat(str(status.get("expirationTimestamp")).replace("Z", "+00:00")).timestamp()
    except ValueError:
        expires = time.time() + ASKED_SECONDS
    return Token(token.text, issued=time.time(), expires=expires)


def _is_served(client: "Client") -> bool:
    resources = (client.get("/api/v1").get("resources")) or ()
    return any(each.get("name") == _RESOURCE for each in resources)


def _is_away(error: StoreError) -> bool:
    """Return whether the server may issue a token later, without that anybody acts."""
    status = getattr(error, "status", 0)
    return not status or status == 429 or status >= 500


def _subject(access: Access) -> str:
    return f"system:serviceaccount:{access.namespace}:{rbac.plugin_account(access.names)}"


def _number(claims: Json, name: str, default: float) -> float:
    found = claims.get(name)
    return float(found) if isinstance(found, int | float) and math.isfinite(found) else default


def _json(part: str) -> Json:
    found: Json = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    return found
