"""Licences of the distributions in the lock files, as SPDX expressions. Their own metadata has them in several forms."""

from typing import Final

MUSL: Final = "MIT"

OF_DISTRIBUTIONS: Final = {
    "aiohappyeyeballs": "PSF-2.0",
    "aiohttp": "Apache-2.0 AND MIT",
    "aiohttp-retry": "MIT",
    "aiosignal": "Apache-2.0",
    "annotated-types": "MIT",
    "async-timeout": "Apache-2.0",
    "attrs": "MIT",
    "certifi": "MPL-2.0",
    "charset-normalizer": "MIT",
    "click": "BSD-3-Clause",
    "dnspython": "ISC",
    "durationpy": "MIT",
    "etcd3": "Apache-2.0",
    "frozenlist": "Apache-2.0",
    "grpcio": "Apache-2.0",
    "idna": "BSD-3-Clause",
    "kubernetes": "Apache-2.0",
    "multidict": "Apache-2.0",
    "oauthlib": "BSD-3-Clause",
    "orjson": "MPL-2.0 AND (Apache-2.0 OR MIT)",
    "propcache": "Apache-2.0",
    "protobuf": "BSD-3-Clause",
    "pydantic": "MIT",
    "pydantic-core": "MIT",
    "pyroute2": "GPL-2.0-or-later OR Apache-2.0",
    "python-dateutil": "BSD-3-Clause",
    "pyyaml": "MIT",
    "requests": "Apache-2.0",
    "requests-oauthlib": "ISC",
    "six": "MIT",
    "tenacity": "Apache-2.0",
    "tomli": "MIT",
    "typing-extensions": "PSF-2.0",
    "typing-inspection": "MIT",
    "tzdata": "Apache-2.0",
    "urllib3": "MIT",
    "websocket-client": "Apache-2.0",
    "yarl": "Apache-2.0",
}
"""Everything that a node may have. orjson: its Python and Rust crates; aiohttp: its parser."""

OF_TOOLS: Final = {
    "cmake": "BSD-3-Clause",
    "cython": "Apache-2.0",
    "ninja": "Apache-2.0",
    "scikit-build-core": "Apache-2.0",
    "ziglang": "MIT",
}
"""What compiles the wheels."""
