"""Common settings of all TLS connections of svc, for every Python version."""

import errno
import os
import ssl

UNREADABLE = "cannot be read"


class TlsSocket(ssl.SSLSocket):
    """Socket class for `SSLContext.sslsocket_class` that does not leak descriptors.

    If the peer closes the connection before the handshake begins, for example because the server was killed, the standard
    library does not close the new socket. Its descriptor would stay open as long as a reference to the error exists.
    """

    def getpeername(self) -> object:
        """Return the peer's address, which the standard library requests first. If the peer is gone, close the socket."""
        try:
            return super().getpeername()
        except OSError:
            self.close()
            raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET)) from None


def prepare(context: ssl.SSLContext) -> None:
    """Prepare a new SSL context.

    Python 3.13 and newer refuse certificates without a key identifier. Simple authorities of clusters issue such certificates,
    and all other programs of the cluster accept them. So svc accepts them in every Python version.
    """
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    context.sslsocket_class = TlsSocket


def load_pair(context: ssl.SSLContext, certificate: str, key: str | None) -> str:
    """Load a client certificate and its key from PEM files. Return why they cannot be used; empty if they are loaded."""

    def refuse_password() -> str:
        raise ValueError

    try:
        context.load_cert_chain(certificate, key, password=refuse_password)
    except OSError as error:  # SSLError included
        return "is of another certificate" if "KEY_VALUES_MISMATCH" in str(error) else UNREADABLE
    except ValueError:
        return "is encrypted"
    return ""
