"""gRPC without its asynchronous half, which svc does not use: it imports asyncio, and takes 3 MiB and 30 ms."""

import logging

from svc.lazy_modules import postpone

postpone("asyncio", "grpc.aio")
vars(logging)["logAsyncioTasks"] = False  # from Python 3.12 on, each log record would ask asyncio for the name of its task

import grpc  # noqa: E402  after the modules that it would import

__all__ = ["grpc"]
