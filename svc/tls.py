"""What all of our TLS connections have in common, whatever Python they run on."""

import errno
import os
import ssl


class TlsSocket(ssl.SSLSocket):
    """For `SSLContext.sslsocket_class`. Where the peer breaks a connection off before its handshake begins, as a server does
    that is killed, the standard library forgets the new socket: its descriptor would stay open for as long as anything refers
    to the error."""

    def getpeername(self) -> object:
        """The first thing that is asked of a new socket. ConnectionResetError, and closed, when there is no peer any more."""
        try:
            return super().getpeername()
        except OSError:
            self.close()
            raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET)) from None


def prepare(context: ssl.SSLContext) -> None:
    """For one that is just made.

    Python 3.13 and newer refuse certificates without a key identifier, which simple authorities of clusters issue, and which
    every other program there takes: what is trusted shall not depend on the interpreter."""
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    context.sslsocket_class = TlsSocket
