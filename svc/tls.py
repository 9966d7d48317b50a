"""Common settings of all TLS connections of svc, for every Python version."""

import errno
import os
import ssl


class TlsSocket(ssl.SSLSocket):
    """Socket class for `SSLContext.sslsocket_class` that does not leak descriptors.

    If the peer closes the connection before the handshake begins, for example because the server was killed, the standard
    library does not close the new socket. Its descriptor would stay open as long as a reference to the error exists.
    """

    def getpeername(self) -> object:
        """Return the peer's address, which the standard library requests first. If the peer is gone, close the socket and raise
        ConnectionResetError.
        """
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
