"""gRPC without its asynchronous half, which svc does not use: it imports asyncio, and takes 3 MiB and 30 ms."""

from svc.lazy_modules import postpone

postpone("asyncio", "grpc.aio")

import grpc  # noqa: E402  after the modules that it would import

__all__ = ["grpc"]
